"""Listening and connecting with real sockets on the loopback."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.reach import FREE_PORT, Listener, reached
from dynamix_ps.launch.messages.agent_messages import Reach

HERE = "127.0.0.1"


@contextmanager
def listening(**ports: int) -> Iterator[Listener]:
    """A listener, driven by a thread."""
    stop = threading.Event()
    with selectors.DefaultSelector() as selector:
        listener = Listener(selector)
        listener.open(HERE, ports)
        thread = threading.Thread(target=_drive, args=(selector, stop))
        thread.start()
        try:
            yield listener
        finally:
            stop.set()
            thread.join()
            listener.close()
            assert not selector.get_map()


def _drive(selector: selectors.BaseSelector, stop: threading.Event) -> None:
    while not stop.is_set():
        for key, _ in selector.select(0.02):
            ready: Callable[[], None] = key.data
            ready()


def closed_port() -> int:
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


def test_an_open_port_is_reached_and_a_closed_one_is_told() -> None:
    with listening() as listener:
        told = reached(Reach((HERE, HERE), (listener.ports[FREE_PORT], closed_port()), 0.0))
    assert told.problems == ("", "Connection refused")
    assert told.round_trips_s[0] > 0
    assert told.bytes_per_s == (0.0, 0.0)


def test_the_rate_is_of_what_has_arrived() -> None:
    with listening() as listener:
        told = reached(Reach((HERE,), (listener.ports[FREE_PORT],), 0.2))
    assert told.problems == ("",)
    assert told.bytes_per_s[0] > 1e6
    with socket.create_server((HERE, 0)) as server:  # nobody reads there
        told = reached(Reach((HERE,), (server.getsockname()[1],), 0.2))
    assert told.bytes_per_s == (0.0,)


def test_an_address_that_is_none() -> None:
    (problem,) = reached(Reach(("no.such.host.invalid",), (9,), 0.0)).problems
    assert problem


def test_a_port_that_is_taken_is_named_by_its_key() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with selectors.DefaultSelector() as selector:
            listener = Listener(selector)
            with pytest.raises(EnvironmentNotReady, match=rf"cluster\.port: port {port} on 127.0.0.1 is in use"):
                listener.open(HERE, {"cluster.port": port})
            listener.close()
