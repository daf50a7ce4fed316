"""Questions to all hosts, with agents that the test plays."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.messages.agent_messages import (
    FromAgent,
    Hello,
    Inspect,
    Inspected,
    Reach,
    Reached,
    RequestRefused,
    ToAgent,
)
from dynamix_ps.launch.preflight import inspection
from dynamix_ps.launch.preflight.inspection import HostReport, Inspection, rounds
from dynamix_ps.launch.targets.agent_link import Deliver
from dynamix_ps.launch.targets.host_links import HostLinks
from tests.unit.launch.preflight.test_host_checks import FACTS

HOSTS = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
CLUSTER = {"hosts": {name: {"address": address} for name, address in HOSTS.items()}, "workers": ({}, {}, {})}
CONFIG = resolved(Config.model_validate({"cluster": {**CLUSTER, "port": 9000}, "comm": "gloo", "mode": "off"}))


class PlayedAgent:
    """A link whose agent answers at once, or as soon as it `connects`.

    `ahead_s`: its clock. `closed`: addresses that it does not reach.
    """

    shares_run_folder, has_room = False, True

    def __init__(self, host: str, deliver: Deliver) -> None:
        self.host, self._deliver = host, deliver
        self.lost, self.ahead_s, self.refuses = "", 0.0, ""
        self.connects: Callable[[], bool] = lambda: True
        self.closed: tuple[str, ...] = ()
        self.sent: list[ToAgent] = []
        self._asked: list[ToAgent] = []

    def send(self, message: ToAgent) -> None:
        self.sent.append(message)
        if not self.lost:
            self._asked.append(message)
            self.tick()

    def tick(self) -> None:
        while self._asked and self.connects():
            self._answer(self._asked.pop(0))

    def _answer(self, message: ToAgent) -> None:
        if self.refuses:
            self._say(RequestRefused(3, self.refuses))
        elif isinstance(message, Inspect):
            self._say(Hello(2, "1", "3", self.host, 7))
            self._say(self._facts(message))
        elif isinstance(message, Reach):
            problems = tuple("refused" if address in self.closed else "" for address in message.addresses)
            here = tuple(0.001 for _ in problems)
            self._say(Reached(problems, here, tuple(message.rate_s and 1e9 for _ in problems)))

    def _say(self, message: FromAgent) -> None:
        self._deliver(self.host, message)

    def _facts(self, question: Inspect) -> Inspected:
        ports = {"": 41000, **question.ports}
        clock_s = time.time() + self.ahead_s
        return replace(FACTS, address=question.address, ports=ports, clock_s=clock_s)

    def leave(self) -> None: ...

    def close(self) -> None: ...


class Rig:
    def __init__(self) -> None:
        self.agents: dict[str, PlayedAgent] = {}
        self.stopped = False
        self.links = HostLinks(self, self._deliver)
        self.links.connect(HOSTS)
        self.inspection = Inspection(CONFIG, self.links, lambda: self.stopped)

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> PlayedAgent:
        self.agents[host] = PlayedAgent(host, deliver)
        return self.agents[host]

    def _deliver(self, host: str, message: FromAgent) -> None:
        self.inspection.receive(host, message)

    def report(self, rates: bool = False) -> HostReport:
        found = self.inspection.run(rates)
        assert found is not None
        return found


def test_every_host_is_asked_and_every_way_is_tried() -> None:
    rig = Rig()
    report = rig.report()
    assert set(report.answers) == set(HOSTS)
    question = rig.agents["b"].sent[0]
    assert isinstance(question, Inspect)
    assert (question.host, question.address, question.peers, question.ports) == (
        "b",
        "10.0.0.2",
        ("10.0.0.1", "10.0.0.3"),
        {},
    )
    ways = {(way.source, way.target, way.address, way.port, way.port_key) for way in report.ways}
    free = {(source, target, HOSTS[target], 41000, "") for source in HOSTS for target in HOSTS if source != target}
    assert ways == free | {(source, "a", "10.0.0.1", 9000, "cluster.port") for source in "bc"}
    assert not any(way.problem or way.bytes_per_s for way in report.ways)


def test_a_closed_way_and_a_clock_that_is_ahead() -> None:
    rig = Rig()
    rig.agents["b"].closed = ("10.0.0.3",)
    rig.agents["c"].ahead_s = 100.0
    report = rig.report(rates=True)
    assert [(way.source, way.target) for way in report.ways if way.problem] == [("b", "c")]
    assert report.answers["c"].clock_ahead_s == pytest.approx(100.0, abs=10.0)
    assert report.answers["b"].clock_ahead_s == pytest.approx(0.0, abs=10.0)
    rates = {(way.source, way.target) for way in report.ways if way.bytes_per_s}
    assert rates == {(source, target) for source in HOSTS for target in HOSTS if source != target} - {("b", "c")}


def test_hosts_that_are_lost_or_refuse_are_told_and_nobody_waits_for_them() -> None:
    rig = Rig()
    rig.agents["a"].lost = "ssh ended"
    rig.agents["b"].refuses = "of another version"
    report = rig.report(rates=True)
    assert report.silent == {"a": "ssh ended", "b": "of another version"}
    assert set(report.answers) == {"c"}
    assert report.ways == ()


def test_the_others_do_not_wait_for_a_host_that_is_slow_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_LATE_S", 0.0)
    rig = Rig()
    others = [rig.agents["a"], rig.agents["b"]]

    def measured() -> bool:
        return all(any(isinstance(m, Reach) and m.rate_s for m in agent.sent) for agent in others)

    rig.agents["c"].connects = measured
    report = rig.report(rates=True)
    assert set(report.answers) == set(HOSTS)
    tried = [(way.source, way.target) for way in report.ways if way.bytes_per_s]
    assert sorted(tried) == sorted((source, target) for source in HOSTS for target in HOSTS if source != target)
    asked = [m for agent in rig.agents.values() for m in agent.sent if isinstance(m, Reach) and m.rate_s]
    assert len(asked) == len(tried), "no way is measured twice"


def test_nobody_waits_for_a_host_that_never_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_LATE_S", 0.0)
    rig = Rig()
    off = rig.agents["c"]

    def gives_up() -> bool:
        """At the first look after the ways between the others were tried."""
        if any(isinstance(message, Reach) for message in rig.agents["b"].sent):
            off.lost = "timed out"
        return False

    off.connects = gives_up
    report = rig.report()
    assert report.silent == {"c": "timed out"}
    assert {(way.source, way.target) for way in report.ways} == {("a", "b"), ("b", "a")}


def test_a_signal_to_the_launcher_ends_the_questions() -> None:
    rig = Rig()
    rig.stopped = True
    assert rig.inspection.run(rates=False) is None


@given(st.integers(0, 12))
def test_every_pair_has_a_turn_and_nobody_has_two_at_once(number: int) -> None:
    names = [f"{place}" for place in range(number)]
    turns = list(rounds(names))
    pairs = [pair for turn in turns for pair in turn]
    assert sorted(pairs) == sorted((one, other) for one in names for other in names if one != other)
    for turn in turns:
        busy = [name for pair in turn for name in pair]
        assert len(busy) == len(set(busy))
