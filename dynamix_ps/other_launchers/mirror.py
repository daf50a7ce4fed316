"""The companion on a machine without rank 0: it sends the records of the workers there to rank 0's machine."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from pathlib import Path

from dynamix_ps.addresses import split_host_port
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.messages.agent_messages import Decoder
from dynamix_ps.launch.messages.folder_mirror import FolderSender
from dynamix_ps.launch.messages.message_stream import MessageStream
from dynamix_ps.other_launchers.duty import Duty
from dynamix_ps.other_launchers.proven import CALLER, prove
from dynamix_ps.other_launchers.servers import ServerProcesses
from dynamix_ps.other_launchers.workers_here import TICK_S, WorkerProcesses
from dynamix_ps.run_record.run_folder import RunFolder

_CONNECT_S = 30.0
_REST_S = 10.0  # for the rest of the records, after all workers have ended


def send_records(duty: Duty, workers: WorkerProcesses, servers: ServerProcesses) -> int:
    """Do so until all workers here have ended. Returns an exit code.

    Raises EnvironmentNotReady: rank 0's machine does not take them. Training goes on without these records.
    """
    folder = RunFolder(Path(variables.get(variables.RUN_DIR) or ""))
    patience_s = load_config(folder.config_file).timeouts.stall_fail_s
    try:
        connection = _connected(duty.records)
        try:
            _send(connection, folder, workers, servers, patience_s)
        finally:
            connection.close()
    finally:
        while not workers.starter_is_gone and not workers.starter_is_done:  # workers write into the folder
            workers.look()
            servers.look()
    return 0


def _connected(address: str) -> socket.socket:
    host, port = split_host_port(address)
    try:
        connection = socket.create_connection((host, int(port)), _CONNECT_S)
        prove(connection, variables.get(variables.TOKEN) or "", CALLER)
    except OSError as error:
        raise EnvironmentNotReady(
            f"the records of this machine do not reach rank 0's at {address}: {error}; training goes on, and the "
            "summary lacks its workers"
        ) from error
    return connection


def _send(
    connection: socket.socket, folder: RunFolder, workers: WorkerProcesses, servers: ServerProcesses, patience_s: float
) -> None:
    lost: list[str] = []
    with selectors.DefaultSelector() as selector, connection.dup() as writing:  # a selector has each descriptor once
        ends = connection.fileno(), writing.fileno()
        stream = MessageStream(selector, *ends, lambda message: None, lost.append, Decoder())
        sender = FolderSender(folder.path, stream.send, lambda: stream.has_room)
        ended_s: float | None = None
        while not lost:
            workers.look()
            servers.look()
            sender.send_news()
            for key, _ in selector.select(0):
                key.data()
            if workers.starter_is_done or workers.starter_is_gone:
                now_s = time.monotonic()
                ended_s = ended_s or now_s
                if not workers.others or now_s - ended_s > patience_s:
                    break
        if not lost:
            servers.end()
        until_s = time.monotonic() + _REST_S
        while not lost and not (sender.send_news() and stream.is_empty) and time.monotonic() < until_s:
            for key, _ in selector.select(TICK_S):
                key.data()
        stream.close()
    if lost:
        why = lost[0] or "it has closed"
        print(f"warning: rank 0's machine takes no more records of this one: {why}", file=sys.stderr, flush=True)
