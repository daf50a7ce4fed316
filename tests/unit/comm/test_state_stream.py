"""The state of a training goes from one worker to another: whole or not at all, and to nobody without the token."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import numpy as np
import pytest

from dynamix_ps.addresses import split_host_port
from dynamix_ps.certificates import Certificates
from dynamix_ps.comm import peers
from dynamix_ps.comm.peers import PeerListener, dial, received
from dynamix_ps.comm.state_stream import fill, receive_state, send_state
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


@contextmanager
def connected(certificates: Certificates | None = None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: of the one that dialled, and of the one that listened."""
    with (
        listening(certificates) as listener,
        dial(listener.address, TOKEN, certificates) as dialled,
        next_of(listener) as accepted,
    ):
        yield dialled, accepted


def next_of(listener: PeerListener) -> socket.socket:
    found = listener.next(PATIENCE_S)
    assert found is not None, "a worker has dialled"
    return found


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def stranger(address: str) -> socket.socket:
    host, port = split_host_port(address)
    return socket.create_connection((host, int(port)), PATIENCE_S)


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_written_arrives(encrypted: bool) -> None:
    pieces = [b"", b"begin", bytes(range(256)) * 9000, b"end"]  # one of them is longer than a part
    numbers = np.arange(400_000.0)

    def write(out: BinaryIO) -> None:
        for piece in pieces:
            out.write(piece)
        out.write(numbers)

    with connected(Authority(time.time()).issue(HOST) if encrypted else None) as (giver, taker):
        sending = beside(lambda: send_state(giver, write))
        state = receive_state(taker).read()
        sending.join()
    assert state == b"".join(pieces) + numbers.tobytes()


def test_large_arrays_are_sent_from_where_they_are() -> None:
    """Nothing is kept of what is written: the other end has the bytes of a piece before the next one is written."""
    first, second = bytes(3 << 20), b"x" * (3 << 20)
    came = threading.Event()

    def write(out: BinaryIO) -> None:
        out.write(first)
        assert came.wait(PATIENCE_S)
        out.write(second)

    with connected() as (giver, taker):
        sending = beside(lambda: send_state(giver, write))
        sizes = []
        while sum(sizes) < len(first):
            (size,) = struct.unpack(">I", received(taker, 4))
            received(taker, size)
            sizes.append(size)
        came.set()
        assert receive_state(taker).read() == second
        sending.join()


def test_large_arrays_are_received_where_they_are_to_be() -> None:
    """Also where small pieces stand before and behind; and the next state begins where this one ends."""
    numbers, found, end = np.arange(400_000.0), np.zeros(400_000), bytearray(3)

    def write(out: BinaryIO) -> None:
        out.write(b"begin")
        out.write(numbers)
        out.write(b"end")

    with connected() as (giver, taker):
        sending = beside(lambda: [send_state(giver, write), send_state(giver, lambda out: out.write(b"next"))])
        state = receive_state(taker)
        assert state.read(5) == b"begin"
        fill(state, memoryview(found).cast("B"))
        fill(state, memoryview(end))
        with pytest.raises(PeerLostError, match="ends 2 bytes too early"):
            fill(state, memoryview(bytearray(2)))
        assert receive_state(taker).read() == b"next"
        sending.join()
    assert np.array_equal(found, numbers) and end == b"end"


def test_a_state_that_breaks_off_is_none() -> None:
    def write(out: BinaryIO) -> None:
        out.write(bytes(2 << 20))
        giver.shutdown(socket.SHUT_RDWR)

    with connected() as (giver, taker):
        failed: list[PeerLostError] = []

        def send() -> None:
            try:
                send_state(giver, write)
            except PeerLostError as error:
                failed.append(error)

        sending = beside(send)
        with pytest.raises(PeerLostError, match=f"broke off after {2 << 20} bytes"):
            receive_state(taker).read()
        sending.join()
        assert "was to get the state of the training is gone" in str(failed[0])


def test_a_state_that_breaks_off_within_a_part_is_none() -> None:
    with connected() as (giver, taker):
        giver.sendall(struct.pack(">I", 10) + b"begin")
        giver.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerLostError, match="broke off after 5 bytes"):
            receive_state(taker).read()


def test_what_writes_does_not_notice_that_nobody_listens_any_more() -> None:
    """Those of frameworks would write on, or end the process."""
    written: list[int] = []

    def write(out: BinaryIO) -> None:
        written.extend(out.write(bytes(2 << 20)) for _ in range(20))

    with connected() as (giver, taker):
        taker.close()
        with pytest.raises(PeerLostError):
            send_state(giver, write)
    assert written == [2 << 20] * 20


def test_a_part_that_no_worker_sends_is_refused() -> None:
    with connected() as (giver, taker):
        giver.sendall(struct.pack(">I", 1 << 31))
        with pytest.raises(PeerLostError, match="expected at most"):
            receive_state(taker).read()


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
