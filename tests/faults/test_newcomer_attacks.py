"""Attacks of another user on the port where a newcomer of an elastic job gets the state; attacks.py has the table."""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dynamix_ps.addresses import split_host_port
from dynamix_ps.comm.peers import PeerListener, dial, received
from dynamix_ps.errors import PeerLostError
from tests.faults.attacks import NEWCOMER, attacks_at
from tests.faults.stranger import ATTACKS, attack
from tests.other_user import as_another_user

pytestmark = pytest.mark.timeout(120)

HOST, TOKEN = "127.0.0.1", "secret"
PATIENCE_S = 60.0
STATE = os.urandom(3 << 20)
BESIDE = [row.key for row in attacks_at(NEWCOMER) if row.key in ATTACKS]


@contextmanager
def newcomer() -> Iterator[PeerListener]:
    listener = PeerListener(HOST, TOKEN)
    try:
        yield listener
    finally:
        listener.close()


def give_state(listener: PeerListener) -> None:
    """A worker of the run connects and sends the state. It arrives whole, and nobody else got in before."""

    def give() -> None:
        with dial(listener.address, TOKEN, within_s=PATIENCE_S) as connection:
            connection.sendall(STATE)

    giving = threading.Thread(target=give)
    giving.start()
    connection = listener.next(PATIENCE_S)
    assert connection is not None, "a worker has connected"
    with connection:
        assert received(connection, len(STATE)) == STATE
    giving.join()
    assert listener.next(0) is None


def connect(address: str) -> socket.socket:
    host, port = split_host_port(address)
    return socket.create_connection((host, int(port)), PATIENCE_S)


def row(key: str) -> pytest.MarkDecorator:
    """The row of the table that a test holds, as its id."""
    return pytest.mark.parametrize("_row", [pytest.param(None, id=key)])


@pytest.mark.parametrize("key", BESIDE)
def test_a_newcomer_gets_the_state_while_strangers_connect(key: str) -> None:
    with newcomer() as listener, attack(key, listener.address):
        give_state(listener)


@row("newcomer-replay")
def test_what_a_worker_has_said_is_worth_nothing_on_another_connection(_row: None) -> None:
    with newcomer() as listener:
        with connect(listener.address) as first:
            challenge, own = received(first, 32), os.urandom(32)
            said = own + hmac.digest(TOKEN.encode(), b"dynamix peers 1, dialling\n" + challenge + own, "sha256")
            first.sendall(said)
            assert len(received(first, 32)) == 32, "it counts once"

        def repeat() -> None:
            with connect(listener.address) as second:
                received(second, 32)
                second.sendall(said)
                assert second.recv(1) == b"", "closed"

        as_another_user(repeat)
        taken = listener.next(PATIENCE_S)
        assert taken is not None
        taken.close()
        give_state(listener)


@row("newcomer-impostor")
def test_nothing_is_sent_to_somebody_else_at_the_port_of_a_newcomer(_row: None) -> None:
    heard: list[bytes] = []

    def listen(place: socket.socket) -> None:
        connection, _ = place.accept()
        with connection:
            connection.sendall(bytes(32))
            heard.append(received(connection, 64))
            connection.sendall(bytes(32))
            heard.append(connection.recv(1))

    with socket.create_server((HOST, 0)) as impostor:
        listening = threading.Thread(target=listen, args=(impostor,))
        listening.start()
        with pytest.raises(PeerLostError, match="does not know the token"):
            dial(f"{HOST}:{impostor.getsockname()[1]}", TOKEN, within_s=0)
        listening.join()
    (greeting, after) = heard
    assert TOKEN.encode() not in greeting and after == b""
