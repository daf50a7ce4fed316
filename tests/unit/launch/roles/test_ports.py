"""Ports: fixed ports must be free, else their owner is named; other ports are chosen."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence

import pytest

from dynamix_ps.addresses import bind_error
from dynamix_ps.config.schema import Cluster, WorkerSection
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.roles.ports import choose_ports, owner_of


def cluster(host: str = "127.0.0.1", port: int = 0, arbitrator_port: int = 0) -> Cluster:
    return Cluster(host=host, port=port, arbitrator_port=arbitrator_port, workers=(WorkerSection(),))


@pytest.fixture
def taken() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_picked_ports_differ_and_can_be_bound() -> None:
    ports = choose_ports(cluster(), random.Random(1))
    assert len(set(ports)) == 2
    assert all(20_000 <= port < 32_000 and bind_error("127.0.0.1", port) is None for port in ports)


def test_a_picked_port_is_never_the_fixed_one() -> None:
    fixed = choose_ports(cluster(), random.Random(1))[0]
    scheduler, arbitrator = choose_ports(cluster(arbitrator_port=fixed), random.Random(1))
    assert arbitrator == fixed
    assert scheduler != fixed


def test_both_picked_ports_differ_where_one_is_drawn_twice() -> None:
    class Repeats(random.Random):
        def choice(self, seq: Sequence[int]) -> int:
            return drawn.pop(0)

    one, other = choose_ports(cluster(), random.Random(1))
    drawn = [one, one, other]
    assert choose_ports(cluster(), Repeats()) == (one, other)


@pytest.mark.parametrize("key", ["port", "arbitrator_port"])
def test_a_taken_port_is_named_with_its_owner(taken: int, key: str) -> None:
    with pytest.raises(EnvironmentNotReady) as caught:
        choose_ports(cluster(**{key: taken}), random.Random(1))
    assert f"cluster.{key}: port {taken} on 127.0.0.1 is in use by" in str(caught.value)
    assert f"(pid {os.getpid()})" in str(caught.value)
    assert f"set cluster.{key}: 0" in str(caught.value)


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(EnvironmentNotReady, match="all roles run on this machine"):
        choose_ports(cluster(host="192.0.2.1"), random.Random(1))
    with pytest.raises(EnvironmentNotReady, match=r"cluster\.port"):
        choose_ports(cluster(host="no-such-host.invalid", port=29999), random.Random(1))


def test_nobody_owns_a_free_port() -> None:
    assert owner_of(choose_ports(cluster(), random.Random())[0]) is None
