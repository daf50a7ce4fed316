"""Which source is used when: failures, recoveries, waiting times, and one event for each change."""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.metrics.network.connection import Connection, NetworkSource, Reading, SourceError, SourceName
from dynamix_ps.metrics.network.meter import rates
from dynamix_ps.metrics.network.monitor import FIRST_RETRY_S, LONGEST_RETRY_S, TRUSTED_AFTER_S, NetworkMonitor
from dynamix_ps.metrics.network.probe.start import (
    ProbeRefused,
    ProbeStarting,
    check_started,
    note_answers,
    note_refused,
    note_starting,
)


class FakeSource(NetworkSource):
    """Finds the bytes of `counters`; fails while its name is in `broken`."""

    def __init__(self, name: SourceName, world: World) -> None:
        world.made.append(name)
        if name in world.unmakeable:
            raise world.unmakeable[name]
        self.name, self._world = name, world
        world.open.append(self)

    def read(self) -> Reading:
        self._world.asked.append(self.name)
        if self.name in self._world.broken:
            raise self._world.broken[self.name]
        sent = self._world.sent[self.name]
        connection = Connection(f"{self.name}", 1, 1, "10.0.0.1:1", "10.0.0.2:2", sent, 0.0, 0.0)
        return Reading(self.name, self._world.now_s, (connection,))

    def close(self) -> None:
        assert self in self._world.open, "closed twice"
        self._world.open.remove(self)


class World:
    def __init__(self, wanted: str = "auto") -> None:
        self.now_s = 1000.0
        self.broken: dict[str, Exception] = {}
        self.unmakeable: dict[str, SourceError] = {}
        self.sent: dict[str, float] = {"ebpf": 5e6, "sockdiag": 7e6, "procfs": 9e9}
        self.made: list[str] = []
        self.asked: list[str] = []
        self.open: list[FakeSource] = []
        self.events: list[tuple[str, str]] = []
        self.monitor = NetworkMonitor(wanted, self._note, clock=lambda: self.now_s, makers=self._makers())

    def _makers(self) -> dict[SourceName, Callable[[], NetworkSource]]:
        names: tuple[SourceName, ...] = ("ebpf", "sockdiag", "procfs")
        return {name: lambda name=name: FakeSource(name, self) for name in names}  # type: ignore[misc]

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        assert fields["what"] == "network metrics"
        self.events.append((kind, fields["detail"]))

    def source(self, after_s: float = 1.0) -> str:
        self.now_s += after_s
        traffic = self.monitor.read()
        assert [source.name for source in self.open] == ([] if traffic.source == "none" else [traffic.source])
        return traffic.source

    def breaks(self, *names: str) -> None:
        self.broken = {name: SourceError(f"{name} broke") for name in names}


def test_the_best_source_is_used_and_nothing_is_said() -> None:
    world = World()
    assert [world.source() for _ in range(3)] == ["ebpf"] * 3
    assert world.made == ["ebpf"]
    assert world.events == []


def test_what_cannot_be_had_from_the_start_is_said_once() -> None:
    world = World()
    world.unmakeable = {"ebpf": SourceError("ebpf is not permitted")}
    assert [world.source() for _ in range(3)] == ["sockdiag"] * 3
    assert world.events == [("degraded", "eBPF: ebpf is not permitted; using sock_diag")]


def test_while_the_probe_starts_nothing_is_known_and_nothing_is_said() -> None:
    world = World()
    world.unmakeable = {"ebpf": ProbeStarting("is starting")}
    starting = [world.monitor.read() for _ in range(2)]
    assert [traffic.source for traffic in starting] == ["none", "none"]
    assert "sockdiag" not in world.made
    world.unmakeable = {}
    world.now_s += 1.0
    first = world.monitor.read()
    assert first.source == "ebpf", "asked at the next reading, without a pause"
    for known in (rates(*starting), rates(starting[1], first)):
        assert math.isnan(known.out_bytes_per_s), "unknown, not zero"
    world.sent["ebpf"] += 500.0
    world.now_s += 1.0
    assert rates(first, world.monitor.read()).out_bytes_per_s == 500.0
    assert world.events == []


def test_a_probe_that_does_not_come_was_told_by_the_launcher() -> None:
    world = World()
    world.unmakeable = {"ebpf": ProbeStarting("is starting")}
    assert world.monitor.read().source == "none"
    world.unmakeable = {"ebpf": ProbeRefused("could not be started")}
    assert [world.source() for _ in range(3)] == ["sockdiag"] * 3
    assert world.events == []
    world.breaks("sockdiag")
    assert world.source() == "procfs"
    assert world.events == [("degraded", "sock_diag: sockdiag broke; using /proc/net")]


def test_files_beside_the_socket_tell_how_far_a_probe_is(tmp_path: Path) -> None:
    socket = str(tmp_path / "p.sock")
    check_started(socket)  # of the host
    note_starting(socket)
    with pytest.raises(ProbeStarting):
        check_started(socket)
    note_answers(socket)
    check_started(socket)
    note_starting(socket)
    note_refused(socket)
    with pytest.raises(ProbeRefused):
        check_started(socket)


def test_a_fall_tells_every_reason_and_loses_no_reading() -> None:
    world = World()
    assert world.source() == "ebpf"
    world.breaks("ebpf", "sockdiag")
    assert world.source() == "procfs"
    assert world.events == [("degraded", "eBPF: ebpf broke; sock_diag: sockdiag broke; using /proc/net")]
    assert world.source() == "procfs"
    assert len(world.events) == 1


def test_with_nothing_left_everything_is_unknown_until_something_works_again() -> None:
    world = World()
    world.breaks("ebpf", "sockdiag", "procfs")
    assert world.source() == "none"
    assert world.source() == "none"
    assert len(world.events) == 1
    assert world.events[0][1].endswith("; using nothing")
    world.breaks("ebpf")
    assert world.source(FIRST_RETRY_S) == "sockdiag"
    assert world.events[1:] == [("recovered", "sock_diag again")]


def test_a_fault_of_our_own_in_one_source_is_survived_too() -> None:
    world = World()
    world.broken = {"ebpf": ZeroDivisionError("division by zero")}
    assert world.source() == "sockdiag"
    assert world.events == [("degraded", "eBPF: division by zero; using sock_diag")]


def test_the_better_source_is_tried_again_with_growing_pauses() -> None:
    world = World()
    world.breaks("ebpf")
    tried = []
    for _ in range(300):
        before = len(world.asked)
        assert world.source(1.0) == "sockdiag"
        if "ebpf" in world.asked[before:]:
            tried.append(world.now_s)
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == [FIRST_RETRY_S, 10.0, 20.0, 40.0, LONGEST_RETRY_S, LONGEST_RETRY_S, LONGEST_RETRY_S]
    assert len(world.events) == 1
    world.breaks()
    assert world.source(LONGEST_RETRY_S) == "ebpf"
    assert world.events[1:] == [("recovered", "eBPF again")]


def test_a_source_that_comes_and_goes_is_trusted_less_each_time() -> None:
    world = World()
    for pause_s in (FIRST_RETRY_S, 10.0, 20.0):
        assert world.source() == "ebpf"
        world.breaks("ebpf")
        assert world.source() == "sockdiag"
        world.breaks()
        assert world.source(pause_s - 0.5) == "sockdiag"
        assert world.source(0.5) == "ebpf"
    world.source(TRUSTED_AFTER_S)  # and fully again after a minute
    world.breaks("ebpf")
    assert world.source() == "sockdiag"
    world.breaks()
    assert world.source(FIRST_RETRY_S) == "ebpf"
    assert [kind for kind, _ in world.events] == ["degraded", "recovered"] * 4


def test_a_fall_while_the_better_one_is_still_broken_is_one_event() -> None:
    world = World()
    world.breaks("ebpf")
    assert world.source() == "sockdiag"
    world.breaks("ebpf", "sockdiag")
    assert world.source(FIRST_RETRY_S) == "procfs"
    assert [kind for kind, _ in world.events] == ["degraded", "degraded"]
    world.breaks()
    assert world.source(LONGEST_RETRY_S) == "ebpf"


@pytest.mark.parametrize("wanted", ["ebpf", "sockdiag", "procfs"])
def test_a_named_source_has_no_replacement(wanted: str) -> None:
    world = World(wanted)
    assert world.source() == wanted
    world.breaks(wanted)
    assert world.source() == "none"
    assert [kind for kind, _ in world.events] == ["degraded"]
    world.breaks()
    assert world.source(FIRST_RETRY_S) == wanted
    assert set(world.asked) == {wanted}


def test_off_means_nothing_is_asked_and_nothing_said() -> None:
    world = World("off")
    assert world.source() == "none"
    assert world.source(LONGEST_RETRY_S) == "none"
    assert world.made == []
    assert world.events == []


def test_a_change_of_the_source_never_looks_like_traffic() -> None:
    """The sources here know connections that have nothing to do with each other."""
    world = World()
    before = world.monitor.read()
    history = [before]
    for step in ("", "ebpf", "ebpf sockdiag", "ebpf sockdiag procfs", ""):
        world.breaks(*step.split())
        for name in world.sent:
            world.sent[name] += 1000.0
        world.now_s += LONGEST_RETRY_S
        history.append(world.monitor.read())
    for earlier, later in itertools.pairwise(history):
        rate = rates(earlier, later).out_bytes_per_s
        assert math.isnan(rate) or 0 <= rate * LONGEST_RETRY_S <= 2000.0, (earlier.source, later.source, rate)
    assert [traffic.source for traffic in history] == ["ebpf", "ebpf", "sockdiag", "procfs", "none", "ebpf"]


def test_close_lets_go_and_a_later_reading_begins_anew() -> None:
    world = World()
    world.source()
    world.monitor.close()
    world.monitor.close()
    assert world.open == []
    assert world.source() == "ebpf"
    assert world.events == []


def monitor_in(environment: str | None, monkeypatch: pytest.MonkeyPatch, wanted: str) -> tuple[str, list[str]]:
    if environment is None:
        monkeypatch.delenv("DYNAMIX_PROBE", raising=False)
    else:
        monkeypatch.setenv("DYNAMIX_PROBE", environment)
    events: list[str] = []
    monitor = NetworkMonitor(wanted, lambda kind, fields: events.append(fields["detail"]))
    try:
        return monitor.read().source, events
    finally:
        monitor.close()


def test_what_the_launcher_has_said_already_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert monitor_in("none", monkeypatch, "auto") == ("sockdiag", [])


def test_a_probe_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, events = monitor_in(f"{tmp_path}/p", monkeypatch, "auto")
    assert source == "sockdiag"
    assert events == [f"eBPF: network probe {tmp_path}/p: there is no such socket; using sock_diag"]
    source, events = monitor_in(f"{tmp_path}/p", monkeypatch, "ebpf")
    assert source == "none"
    assert events == [f"eBPF: network probe {tmp_path}/p: there is no such socket; using nothing"]


@pytest.mark.parametrize("wanted", ["sockdiag", "procfs"])
def test_the_sources_without_privilege_are_real(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x" * 1000)
        assert monitor_in(None, monkeypatch, wanted) == (wanted, [])
