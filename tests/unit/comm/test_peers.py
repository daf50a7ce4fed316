"""A connection between two workers, and none to anybody without the token."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dynamix_ps.addresses import split_host_port
from dynamix_ps.certificates import Certificates
from dynamix_ps.comm import peers
from dynamix_ps.comm.peers import PeerListener, dial, received
from dynamix_ps.errors import PeerLostError
from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.token_proof import proof

HOST, TOKEN = "127.0.0.1", "secret"
PATIENCE_S = 20.0
pytestmark = pytest.mark.timeout(60)


@contextmanager
def listening(certificates: Certificates | None = None) -> Iterator[PeerListener]:
    listener = PeerListener(HOST, TOKEN, certificates)
    try:
        yield listener
    finally:
        listener.close()


def next_of(listener: PeerListener) -> socket.socket:
    found = listener.next(PATIENCE_S)
    assert found is not None, "a worker has dialled"
    return found


def stranger(address: str) -> socket.socket:
    host, port = split_host_port(address)
    return socket.create_connection((host, int(port)), PATIENCE_S)


def test_who_does_not_know_the_token_is_not_let_in() -> None:
    with listening() as listener:
        with pytest.raises(PeerLostError, match="no worker of this run answers"):
            dial(listener.address, "another", within_s=0)
        with dial(listener.address, TOKEN), next_of(listener):
            pass  # it is still there for others
        assert listener.next(0) is None, "the stranger is not among them"


def test_who_listens_without_the_token_gets_nothing() -> None:
    with listening() as listener:
        listener._token = "another"
        with pytest.raises(PeerLostError):
            dial(listener.address, TOKEN, within_s=0)


def test_a_proof_of_the_other_side_is_no_proof() -> None:
    """Who listens cannot be used to answer for somebody who dials: the proof names its side."""
    with listening() as listener, stranger(listener.address) as one, stranger(listener.address) as other:
        first, second = received(one, 32), received(other, 32)
        one.sendall(second + bytes(32))
        assert one.recv(1) == b"", "closed"
        other.sendall(first + proof(TOKEN, peers._PROTOCOL, "listening", second + first))
        assert other.recv(1) == b"", "closed"
        assert listener.next(0) is None


def test_a_worker_without_a_certificate_of_the_run_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_PATIENCE_S", 0.5)
    run, other = Authority(time.time()), Authority(time.time())
    with listening(run.issue(HOST)) as listener:
        for certificates in (None, other.issue(HOST)):
            with pytest.raises(PeerLostError):
                dial(listener.address, TOKEN, certificates, within_s=0)
        assert listener.next(0) is None


@pytest.mark.parametrize("encrypted", [False, True])
def test_strangers_who_say_nothing_make_room_for_a_worker(encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_PATIENCE_S", 10 * PATIENCE_S)
    certificates = Authority(time.time()).issue(HOST) if encrypted else None
    with listening(certificates) as listener, ExitStack() as held:
        silent = [held.enter_context(stranger(listener.address)) for _ in range(2 * peers._MOST_STRANGERS)]
        with dial(listener.address, TOKEN, certificates, within_s=PATIENCE_S), next_of(listener):
            pass
        silent[0].settimeout(PATIENCE_S)
        assert received(silent[0], 0 if encrypted else 32) is not None
        assert silent[0].recv(1) == b"", "the oldest is closed"
        silent[-1].settimeout(0.0)
        with pytest.raises(BlockingIOError):
            received(silent[-1], 33)
        assert len(listener._strangers) <= peers._MOST_STRANGERS
