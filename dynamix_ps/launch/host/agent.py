"""The agent of one host: `python -m dynamix_ps.launch.host.agent`, started by the launcher's ssh, srun or the like.

The agent talks to the launcher through its standard input and output. It ends all roles and removes what the run held
on its host when the input closes, when nothing has come for LEASE_S (a cut link leaves the input open), at a signal,
and when the launcher says so. Only the first SIGTERM is a notice, from a batch system or a host that goes down: the
agent passes it to the launcher, which ends the run in order. If the agent itself is killed, its roles end with it, and
its reaper removes the rest.
"""

from __future__ import annotations

import os
import platform
import selectors
import signal
import socket
import sys
import time
from types import FrameType

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.host.host_agent import HostAgent
from dynamix_ps.launch.messages.agent_messages import (
    PROTOCOL,
    Alive,
    Decoder,
    FromAgent,
    Hello,
    Message,
    Notice,
    ToAgent,
)
from dynamix_ps.launch.messages.message_stream import MessageStream
from dynamix_ps.packages import installed_version

HEARTBEAT_S = 1.0
LEASE_S = 7.0  # all is gone within 10 s of a cut: the lease, and at most 2 s to end the roles
TICK_S = 0.2
_FLUSH_S = 5.0


class AgentProcess:
    """The loop around one HostAgent."""

    def __init__(self, reading: int, writing: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._stream = MessageStream(self._selector, reading, writing, self._receive, self._stream_ended, Decoder())
        self._agent = HostAgent(self._selector, self._send, os.environ, has_room=lambda: self._stream.has_room)
        self._heard_s = self._said_s = time.monotonic()
        self._why_end = ""
        self._notice: signal.Signals | None = None  # came, and the launcher does not know it yet
        self._noticed = False

    def run(self) -> str:
        """Serve one run. Returns why the run ended; empty: the launcher said so."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told)
        self._stream.send(hello())
        try:
            while not self._why_end and not self._agent.finished:
                self._wait(TICK_S)
                self._agent.tick()
                self._keep_lease()
            if self._agent.finished:
                self._flush()
        finally:
            self._agent.close()
            self._stream.close()
        return self._why_end

    def _wait(self, duration_s: float) -> None:
        for key, _ in self._selector.select(duration_s):
            if self._selector.get_map().get(key.fd) is key:  # not if one before it has closed it
                key.data()

    def _keep_lease(self) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= HEARTBEAT_S:
            self._said_s = now_s
            self._send(Alive())
        if now_s - self._heard_s > LEASE_S:
            self._why_end = f"the launcher has not been heard of for {LEASE_S:g} s"

    def _send(self, message: FromAgent) -> None:
        """Send a notice before other messages: it explains the ends of roles that got the same signal."""
        if self._notice is not None:
            self._stream.send(Notice(self._notice.name))
            self._notice = None
        self._stream.send(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, ToAgent):
            self._agent.receive(message)
        else:
            self._why_end = f"the launcher sent {type(message).__name__}, which is for launchers"
        self._heard_s = time.monotonic()  # after the work, during which nothing is heard

    def _stream_ended(self, reason: str) -> None:
        self._why_end = f"the stream of the launcher has ended{reason and f': {reason}'}"

    def _told(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and not self._noticed:
            self._notice, self._noticed = signal.SIGTERM, True
        else:
            self._why_end = signal.Signals(number).name

    def _flush(self) -> None:
        deadline_s = time.monotonic() + _FLUSH_S
        while not self._stream.is_empty and not self._why_end and time.monotonic() < deadline_s:
            self._wait(TICK_S)


def hello() -> Hello:
    """The first message: the versions of this installation."""
    version = installed_version("dynamix-ps") or "unknown"
    return Hello(PROTOCOL, version, platform.python_version(), socket.gethostname(), os.getpid())


def main() -> int:
    """Entry point. All prints go to standard error, because standard output is the stream."""
    reading, writing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    try:
        process = AgentProcess(reading, writing)
    except PermissionError as error:
        raise EnvironmentNotReady(
            "the agent of a host is started by `dynamix launch`, which talks to it by its standard input"
        ) from error
    why = process.run()
    if why:
        print(f"agent on {socket.gethostname()}: {why}; all that it had started was ended", file=sys.stderr)
    return EnvironmentNotReady.exit_code if why else 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
