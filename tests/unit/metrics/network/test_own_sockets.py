"""The data plane's connections are distinguished from all others of the same process."""

from __future__ import annotations

import contextlib
import socket

import pytest

from dynamix_ps.metrics.network.connection import Connection, endpoint
from dynamix_ps.metrics.network.own_sockets import keep_alive, opened_between, own_sockets


def connection(local: socket.socket) -> Connection:
    here, there = local.getsockname()[:2], local.getpeername()[:2]
    return Connection("1", 0, 0, endpoint(*here), endpoint(*there), 0, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_what_was_opened_in_between_and_what_comes_in_there_counts(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:

        def listen() -> socket.socket:
            return stack.enter_context(socket.create_server((host, 0), family=family))

        def dial(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
            client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
            return client, stack.enter_context(listener.accept()[0])

        control = listen()
        control_out, control_in = dial(control)
        before = own_sockets()
        data = listen()
        data_out, data_in = dial(data)
        is_data = opened_between(before, own_sockets())
        late_out, late_in = dial(data)
        other_out, other_in = dial(control)

        assert all(is_data(connection(one)) for one in (data_out, data_in, late_in))
        assert not any(is_data(connection(one)) for one in (control_out, control_in, other_out, other_in, late_out))


def test_sockets_that_are_no_tcp_connection_are_no_error():
    with socket.socketpair()[0], socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket() as unconnected:
        found = own_sockets()
        unconnected.bind(("127.0.0.1", 0))
    assert all(":" in local and ":" in remote for local, remote in found.connected)


def test_a_connection_that_the_other_end_has_closed_is_not_connected():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        pair = (endpoint(*client.getsockname()), endpoint(*client.getpeername()))
        assert pair in own_sockets().connected
        accepted.close()
        assert client.recv(1) == b""
        found = own_sockets()
        assert pair not in found.connected
        assert pair in found.left


def test_connections_are_kept_alive():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        keep_alive(idle_s=7, every_s=3, probes=2)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [client.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [7, 3, 2]
