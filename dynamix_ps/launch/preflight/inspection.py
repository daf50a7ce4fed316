"""Asks all hosts of a job for their facts, and whether they reach each other, before anything starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.config.role_hosts import address_of, role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.host.code_files import code_folder
from dynamix_ps.launch.messages.agent_messages import (
    FromAgent,
    Hello,
    Inspect,
    Inspected,
    Reach,
    Reached,
    RequestRefused,
)
from dynamix_ps.launch.roles.plan import hosts_with_roles
from dynamix_ps.launch.targets.agent_link import Target
from dynamix_ps.launch.targets.host_links import HostLinks

_ANSWER_S = 60.0
_LATE_S = 4.0  # hosts with which no connection is there by then are waited for after the others have tried their ways
_RATES_S = 3.0  # for the rates of all ways together
_LONGEST_RATE_S, _SHORTEST_RATE_S = 0.25, 0.05
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The facts of a host. Its clock is ahead of the launcher's by `clock_ahead_s`, +- `clock_error_s`."""

    facts: Inspected
    clock_ahead_s: float
    clock_error_s: float


@dataclass(frozen=True, slots=True)
class Way:
    """The link from a host to a port of another one. `port_key`: its key in the cluster file; empty: any port.

    `problem` is empty where the port is open. `bytes_per_s` is 0 where it was not measured.
    """

    source: str
    target: str
    address: str
    port: int
    port_key: str
    problem: str = ""
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostReport:
    """The answers of all hosts. `silent`: hosts without an answer, with the reason."""

    answers: Mapping[str, HostAnswer]
    silent: Mapping[str, str]
    ways: tuple[Way, ...]


class Inspection:
    """One round of questions. Messages of agents go to `receive` while `run` waits.

    Args:
        config: with all hosts written out.
        links: to all hosts that have roles.
        stopped: whether the user has stopped the inspection.
    """

    def __init__(self, config: Config, links: HostLinks, stopped: Callable[[], bool]) -> None:
        self._config, self._links, self._stopped = config, links, stopped
        self._asked_s: dict[str, float] = {}  # since 1970
        self._began_s = 0.0  # monotonic
        self._connected: set[str] = set()
        self.answers: dict[str, HostAnswer] = {}
        self._refused: dict[str, str] = {}
        self._tried: dict[str, list[Way]] = {}  # ways of which a host has not told yet
        self._ways: dict[tuple[str, str, str], Way] = {}

    @property
    def ways(self) -> tuple[Way, ...]:
        """What is known of all links."""
        return tuple(self._ways.values())

    @property
    def is_trying(self) -> bool:
        """Whether a host that is there has not told yet of the links that it is to try."""
        return bool(self._tried.keys() - self._links.lost.keys())

    def run(self, rates: bool) -> HostReport | None:
        """Ask all hosts at once. With `rates`, then measure every link between them. None: stopped."""
        self._ask()
        tried: set[str] = set()  # hosts whose ways to each other were tried
        for awaited in (self._awaited_soon, self._awaited):
            if not self._wait(awaited):
                return None
            new = self.answers.keys() - tried
            tried |= new
            if new and not (self._reach_all(new) and (not rates or self._measure(new))):
                return None
        silent = {host: self._why_silent(host) for host in self._links if host not in self.answers}
        answers = {host: self.answers[host] for host in self._links if host in self.answers}
        return HostReport(answers, silent, self.ways)

    def receive(self, host: str, message: FromAgent) -> None:
        """Take a message of an agent."""
        now_s = time.time()
        if isinstance(message, Hello):
            self._asked_s[host] = now_s  # what was sent before waits for it
            self._connected.add(host)
        elif isinstance(message, Inspected):
            on_the_way_s = max(0.0, now_s - self._asked_s[host] - message.took_s)
            ahead_s = message.clock_s - (now_s - on_the_way_s / 2)
            self.answers[host] = HostAnswer(message, ahead_s, on_the_way_s / 2)
        elif isinstance(message, Reached):
            self._take(host, message)
        elif isinstance(message, RequestRefused):
            self._refused[host] = message.reason

    def ask(self, host: str) -> None:
        """Ask one host for its facts."""
        self._asked_s[host] = time.time()
        self._links[host].send(self._question(host))

    def reach(self, source: str, ways: list[Way], rate_s: float = 0.0) -> None:
        """Let a host try its links to others; see `Reach`."""
        if ways and source not in self._links.lost:
            self._tried[source] = ways
            addresses, ports = tuple(way.address for way in ways), tuple(way.port for way in ways)
            self._links[source].send(Reach(addresses, ports, rate_s))

    def _ask(self) -> None:
        self._began_s = time.monotonic()
        for host in self._links:
            self.ask(host)

    def _awaited(self) -> list[str]:
        return [host for host in self._links if host not in self.answers]

    def _awaited_soon(self) -> list[str]:
        late = time.monotonic() - self._began_s > _LATE_S
        return [host for host in self._awaited() if host in self._connected or not late]

    def _reach_all(self, new: Collection[str]) -> bool:
        """Try all links to and from new hosts."""
        listening = {host: answer.facts for host, answer in self.answers.items() if not answer.facts.problem}
        for source in listening:
            self.reach(source, [
                Way(source, target, facts.address, port, key)
                for target, facts in listening.items() if target != source and (target in new or source in new)
                for key, port in facts.ports.items()
            ])  # fmt: skip
        return self._wait(lambda: self._tried)

    def _measure(self, new: Collection[str]) -> bool:
        """Measure all links to and from new hosts."""
        ways = (way for way in self._ways.values() if way.source in new or way.target in new)
        open_ways = {(way.source, way.target): way for way in ways if not way.problem}
        turns = list(rounds([host for host in self._links if host in self.answers]))
        rate_s = max(_SHORTEST_RATE_S, min(_LONGEST_RATE_S, _RATES_S / max(1, len(turns))))
        for pairs in turns:
            for pair in pairs:
                if pair in open_ways:
                    self.reach(pair[0], [open_ways[pair]], rate_s)
            if not self._wait(lambda: self._tried):
                return False
        return True

    def _question(self, host: str) -> Inspect:
        cluster, cwd = self._config.cluster, Path.cwd()
        fixed = {"cluster.port": cluster.port, "cluster.arbitrator_port": cluster.arbitrator_port}
        here = {key: port for key, port in fixed.items() if port and host == role_hosts(cluster).home}
        return Inspect(
            host=host,
            address=address_of(cluster, host),
            peers=tuple(address_of(cluster, other) for other in self._links if other != host),
            cwd=os.getcwd(),
            code=str(code_folder(self._config.command, cwd, variables.home_dir())),
            ports=here,
        )

    def _take(self, source: str, told: Reached) -> None:
        found = zip(told.problems, told.round_trips_s, told.bytes_per_s, strict=False)
        for way, (problem, round_trip_s, bytes_per_s) in zip(self._tried.pop(source, []), found, strict=False):
            key = (way.source, way.target, way.port_key)
            self._ways[key] = Way(*key[:2], way.address, way.port, key[2], problem, round_trip_s, bytes_per_s)

    def _wait(self, missing: Callable[[], Iterable[str]]) -> bool:
        """Wait until every host has answered or is lost. Returns False if the user has stopped the inspection."""
        deadline_s = time.monotonic() + _ANSWER_S
        while not self._stopped():
            gone = self._links.lost.keys() | self._refused.keys()
            if all(host in gone for host in missing()) or time.monotonic() > deadline_s:
                self._tried.clear()
                return True
            self._links.pump(_TICK_S)
        return False

    def _why_silent(self, host: str) -> str:
        late = f"no answer within {_ANSWER_S:g} s; see its load and its disk"
        return self._links.lost.get(host) or self._refused.get(host) or late


def inspect_hosts(config: Config, target: Target) -> HostReport:
    """Reach the hosts of a job, with all hosts written out, ask them, and measure every way between them.

    Raises:
        EnvironmentNotReady: the command that reaches a host cannot be started.
    """

    def deliver(host: str, message: FromAgent) -> None:
        inspection.receive(host, message)

    links = HostLinks(target, deliver)
    inspection = Inspection(config, links, stopped=lambda: False)
    try:
        links.connect(hosts_with_roles(config))
        report = inspection.run(rates=True)
        assert report is not None
        return report
    finally:
        links.close()


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Every ordered pair once, in rounds; no name occurs twice in a round. Pure."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    half = len(ring) // 2
    for _ in range(len(ring) - 1):
        facing = zip(ring[:half], reversed(ring[half:]), strict=True)
        pairs = [(one, other) for one, other in facing if one is not None and other is not None]
        yield pairs
        yield [(other, one) for one, other in pairs]
        ring = [ring[0], ring[-1], *ring[1:-1]]
