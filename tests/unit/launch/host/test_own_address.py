"""The address of a host for the others: an address that it has, or the one at the start of the route to them."""

from __future__ import annotations

import socket

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host import own_address as module
from dynamix_ps.launch.host.own_address import own_address


def test_roles_of_one_host_take_what_the_file_says() -> None:
    assert own_address("localhost", (), "localhost") == "localhost"


def test_an_address_counts_if_the_host_has_it() -> None:
    assert own_address("127.0.0.1", ("10.0.0.2",), "a") == "127.0.0.1"


def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_by_route", lambda peers, host: "10.0.0.7")
    with pytest.raises(EnvironmentNotReady) as caught:
        own_address("203.0.113.5", ("10.0.0.2",), "a")
    assert "cluster.hosts.a: 203.0.113.5 is no address of that host" in str(caught.value)
    assert f"{socket.gethostname()} and has 10.0.0.7 towards 10.0.0.2; correct its address" in str(caught.value)


def test_a_route_that_leads_back_is_no_route() -> None:
    with pytest.raises(EnvironmentNotReady, match=r"127\.0\.0\.1 is 127\.0\.0\.1, which is this host itself"):
        own_address("node-a", ("127.0.0.1",), "a")


def test_a_peer_that_nobody_knows_is_named() -> None:
    with pytest.raises(EnvironmentNotReady, match=r"no route to the other hosts \(no-such-host\.invalid: "):
        own_address("node-a", ("no-such-host.invalid",), "a")


def test_the_route_decides_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Routed(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return "10.0.0.7", 1

    monkeypatch.setattr(module.socket, "socket", Routed)
    assert own_address("node-a", ("no-such-host.invalid", "127.0.0.1"), "a") == "10.0.0.7"
