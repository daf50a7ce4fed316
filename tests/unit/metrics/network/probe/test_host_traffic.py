"""Traffic between processes, from the snapshots of a probe."""

from __future__ import annotations

import math

import pytest

from dynamix_ps.metrics.network.connection import Connection
from dynamix_ps.metrics.network.probe.host_traffic import HostTraffic, PeerTraffic, direction
from dynamix_ps.metrics.network.probe.protocol import ProbeSnapshot, WatchedProcess

WORKER, SERVER, OTHER = (
    WatchedProcess(11, "worker-0", "0badcafe", "a"),
    WatchedProcess(12, "server-0", "0badcafe", ""),
    WatchedProcess(13, "", "", "b"),
)


def end(pid: int, local: str, remote: str, out: float = 0.0, netns: int = 1, **rest: float) -> Connection:
    return Connection(
        f"{pid}-{local}-{remote}", pid, netns, local, remote, out, 0.0, rest.pop("retransmits", 0.0), **rest
    )


def snapshot(taken_s: float, *connections: Connection) -> ProbeSnapshot:
    return ProbeSnapshot("vm", taken_s, 0, 0.0, (WORKER, SERVER, OTHER), connections)


def pairs(*connections: Connection) -> set[tuple[str, str]]:
    return {(pair.name, pair.peer) for pair in HostTraffic().update(snapshot(1.0, *connections))}


def test_both_ends_know_each_other_across_namespaces() -> None:
    there, back = end(11, "10.0.0.1:7", "10.0.0.2:8", netns=1), end(12, "10.0.0.2:8", "10.0.0.1:7", netns=2)
    assert pairs(there, back) == {("worker-0", "server-0"), ("server-0", "worker-0")}


def test_loopback_addresses_never_lead_into_another_namespace() -> None:
    there = end(11, "127.0.0.1:7", "127.0.0.1:8", netns=1)
    elsewhere = end(13, "127.0.0.1:8", "127.0.0.1:7", netns=2)
    here = end(12, "127.0.0.1:8", "127.0.0.1:7", netns=1)
    assert ("worker-0", "127.0.0.1:8") in pairs(there, elsewhere)
    assert ("worker-0", "server-0") in pairs(there, elsewhere, here)
    assert ("pid 13", "127.0.0.1:7") in pairs(there, elsewhere, here)
    assert ("worker-0", "[::1]:8") in pairs(end(11, "[::1]:7", "[::1]:8"), end(13, "[::1]:8", "[::1]:7", netns=2))


def test_the_same_addresses_in_two_namespaces_are_told_apart() -> None:
    there, near = end(11, "10.0.0.1:7", "10.0.0.2:8"), end(12, "10.0.0.2:8", "10.0.0.1:7")
    far = end(13, "10.0.0.2:8", "10.0.0.1:7", netns=2)
    assert ("worker-0", "server-0") in pairs(far, there, near)


def test_who_is_not_on_this_host_is_an_address() -> None:
    assert pairs(end(11, "10.0.0.1:7", "10.0.9.9:8")) == {("worker-0", "10.0.9.9:8")}
    assert pairs(end(11, "*", "*")) == {("worker-0", "worker-0")}
    assert pairs(end(99, "10.0.0.1:7", "10.0.9.9:8")) == set()


def test_rates_of_all_connections_of_a_pair() -> None:
    traffic = HostTraffic()

    def at(taken_s: float, first: float, second: float, retransmits: float) -> list[PeerTraffic]:
        connections = (
            end(11, "10.0.0.1:7", "10.0.0.2:8", first, retransmits=retransmits, rtt_s=0.5, unsent_bytes=7.0),
            end(11, "10.0.0.1:9", "10.0.0.2:8", second, rtt_s=0.25, unsent_bytes=1.0),
            end(12, "10.0.0.2:8", "10.0.0.1:7"),
            end(12, "10.0.0.2:8", "10.0.0.1:9"),
        )
        return [pair for pair in traffic.update(snapshot(taken_s, *connections)) if pair.name == "worker-0"]

    (first,) = at(1.0, 1e6, 2e6, 5.0)
    assert math.isnan(first.out_bytes_per_s)
    (second,) = at(3.0, 1.5e6, 4e6, 9.0)
    assert (second.peer, second.direction, second.connections) == ("server-0", "push", 2)
    assert (second.out_bytes_per_s, second.in_bytes_per_s, second.retransmits_per_s) == (1.25e6, 0.0, 2.0)
    assert (second.rtt_s, second.unsent_bytes, second.run, second.host) == (0.25, 8.0, "0badcafe", "a")
    assert (second.source, second.taken_s) == ("ebpf", 3.0)


def test_a_pair_without_an_open_connection_is_not_shown() -> None:
    traffic = HostTraffic()
    traffic.update(snapshot(1.0, end(11, "10.0.0.1:7", "10.0.0.2:8")))
    closed = Connection("x", 11, 1, "10.0.0.1:7", "10.0.0.2:8", 5.0, 0.0, 0.0, closed=True)
    assert traffic.update(snapshot(2.0, closed)) == ()


@pytest.mark.parametrize(
    ("name", "peer", "expected"),
    [
        ("worker-0", "server-1", "push"),
        ("server-1", "worker-0", "pull"),
        ("worker-0", "scheduler", ""),
        ("worker-0", "worker-1", ""),
        ("worker-0", "10.0.0.1:80", ""),
    ],
)
def test_what_the_bytes_are(name: str, peer: str, expected: str) -> None:
    assert direction(name, peer) == expected
