"""Records come from other machines whose companions know the token, and from nobody else."""

from __future__ import annotations

import selectors
import socket
from pathlib import Path

import pytest

from dynamix_ps.launch.messages.agent_messages import Decoder
from dynamix_ps.launch.messages.folder_mirror import FolderSender
from dynamix_ps.launch.messages.message_stream import MessageStream
from dynamix_ps.other_launchers.proven import CALLER, prove
from dynamix_ps.other_launchers.receiving import Receiving
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.token_proof import RANDOM_BYTES
from tests.launching import wait_for

LINES = '{"kind": "window"}\n' * 100


def listening() -> tuple[int, int]:
    """Descriptor and port of a socket that listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    return listener.detach(), port


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


@pytest.fixture
def away(tmp_path: Path) -> RunFolder:
    """The folder of another machine, with the records of worker 1."""
    folder = RunFolder(tmp_path / "away")
    folder.make()
    folder.worker_file(1).write_text(LINES)
    return folder


def send(connection: socket.socket, folder: RunFolder) -> None:
    """All that is in a folder, and the end."""
    with connection, selectors.DefaultSelector() as selector:
        number = connection.fileno()
        stream = MessageStream(selector, number, number, lambda message: None, lambda reason: None, Decoder())
        assert FolderSender(folder.path, stream.send, lambda: stream.has_room).send_news()
        while not stream.is_empty:
            for key, _ in selector.select(1.0):
                key.data()
        stream.close()


def test_records_arrive(run: RunFolder, away: RunFolder) -> None:
    descriptor, port = listening()
    receiving = Receiving(descriptor, 1, run.path, "secret")
    connection = socket.create_connection(("127.0.0.1", port))
    prove(connection, "secret", CALLER)
    send(connection, away)
    wait_for(lambda: receiving.look() or receiving.is_over, "the end of the records")
    receiving.close()
    assert run.worker_file(1).read_text() == LINES
    assert receiving.problem is None


def test_who_does_not_know_the_token_is_not_heard(run: RunFolder, away: RunFolder) -> None:
    descriptor, port = listening()
    receiving = Receiving(descriptor, 1, run.path, "secret")
    connection = socket.create_connection(("127.0.0.1", port))
    with pytest.raises(OSError, match="does not know the token"):
        prove(connection, "another", CALLER)
    connection.close()
    receiving.look()
    receiving.close()
    assert not run.worker_file(1).exists()
    assert receiving.problem == "the records of 1 other machine(s) have not come to their end"


def test_a_sender_without_the_token_sends_nothing_to_whoever_listens() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(64))  # as a proof of somebody who only guesses
        with pytest.raises(OSError, match="does not know the token"):
            prove(ours, "secret", CALLER)


def test_each_connection_asks_for_another_proof() -> None:
    """So that a proof cannot be repeated."""
    asked = set()
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(OSError, match="has closed the connection"):
                prove(ours, "secret", CALLER)
            asked.add(theirs.recv(RANDOM_BYTES))
    assert len(asked) == 2
