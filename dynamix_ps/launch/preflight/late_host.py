"""Whether a host that the cluster file does not name fits to a job that goes on: the checks of the start."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.messages.agent_messages import Begin, FromAgent, Hello, Inspected, Reached
from dynamix_ps.launch.preflight.check import Check
from dynamix_ps.launch.preflight.host_checks import Expected, host_checks
from dynamix_ps.launch.preflight.inspection import HostReport, Inspection, Way
from dynamix_ps.launch.targets.host_links import HostLinks


@dataclass(frozen=True, slots=True)
class Fit:
    """The hosts that the job began with, as they answered then, and what all must have."""

    report: HostReport
    expected: Expected


class LateHost:
    """The check of one host. The agents of the other hosts run, so they try the links to it.

    Args:
        host: its name.
        config: with this host.
        links: to this host and to others.
        begun: what the other hosts were told: their addresses, and the port of the arbitrator.
        fit: what the host is compared with.
    """

    def __init__(self, host: str, config: Config, links: HostLinks, begun: Begin, fit: Fit) -> None:
        self._host, self._config, self._begun, self._fit = host, config, begun, fit
        self._inspection = Inspection(config, links, stopped=lambda: False)
        self._has_tried = False
        self._inspection.ask(host)

    def receive(self, host: str, message: FromAgent) -> None:
        """Take a message of any agent."""
        if isinstance(message, Reached) or (host == self._host and isinstance(message, (Hello, Inspected))):
            self._inspection.receive(host, message)

    def found(self, others: Collection[str]) -> tuple[Check, ...] | None:
        """The problems, blockers first; None: not all has been answered. Call this until it is.

        `others`: hosts of the job whose agents run.
        """
        answer = self._inspection.answers.get(self._host)
        if answer is None:
            return None
        for other in others:
            if answer.facts.address == self._begun.addresses.get(other):
                detail = f"its address is {answer.facts.address}, as that of {other}: it is the same machine"
                return (Check(f"host {self._host}", "blocker", detail),)
        if not self._has_tried and not answer.facts.problem:
            self._has_tried = True
            self._try_links(answer.facts, others)
        if self._inspection.is_trying:
            return None
        known = self._fit.report
        report = replace(known, answers={**known.answers, self._host: answer}, ways=self._inspection.ways)
        return host_checks(report, self._config, self._fit.expected)

    def _try_links(self, facts: Inspected, others: Collection[str]) -> None:
        home, begun = role_hosts(self._config.cluster).home or "", self._begun
        self._inspection.reach(self._host, [Way(self._host, home, begun.addresses[home], begun.arbitrator_port, "")])
        for other in others:
            ways = [Way(other, self._host, facts.address, port, key) for key, port in facts.ports.items()]
            self._inspection.reach(other, ways)
