"""Questions to all hosts, with agents that the test plays."""

from __future__ import annotations

import selectors
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.agent_link import Deliver
from dynamix_ps.launch.agent_messages import FromAgent, Hello, Inspect, Inspected, Reach, Reached, Refused, ToAgent
from dynamix_ps.launch.host_links import HostLinks
from dynamix_ps.launch.inspection import HostReport, Inspection, rounds
from tests.unit.launch.test_host_checks import FACTS

HOSTS = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
CLUSTER = {"hosts": {name: {"address": address} for name, address in HOSTS.items()}, "workers": ({}, {}, {})}
CONFIG = resolved(Config.model_validate({"cluster": {**CLUSTER, "port": 9000}, "comm": "gloo", "mode": "off"}))


class PlayedAgent:
    """A link whose agent answers at once. `ahead_s`: its clock. `closed`: addresses that it does not reach."""

    shares_run_folder, has_room = False, True

    def __init__(self, host: str, deliver: Deliver) -> None:
        self.host, self._deliver = host, deliver
        self.lost, self.ahead_s, self.refuses = "", 0.0, ""
        self.closed: tuple[str, ...] = ()
        self.sent: list[ToAgent] = []

    def send(self, message: ToAgent) -> None:
        self.sent.append(message)
        if self.lost:
            return
        if self.refuses:
            self._say(Refused(3, self.refuses))
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

    def tick(self) -> None: ...

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
