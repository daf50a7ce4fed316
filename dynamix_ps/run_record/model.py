"""The parts of a run's state: workers, plans, degradations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dynamix_ps.messages import LinkView, NetworkSample, SystemSample
from dynamix_ps.run_record.values import known_sum, ratio

NAMED = 2  # roles that degraded are named up to so many, and counted beyond
TIME_PARTS = ("compute", "push_pull", "wait", "input")


@dataclass(slots=True)
class Mean:
    """The mean of the known values, weighted by time."""

    weighted: float = 0.0
    seconds: float = 0.0

    def add(self, value: float, seconds: float) -> None:
        if not math.isnan(value):
            self.weighted += value * seconds
            self.seconds += seconds

    @property
    def value(self) -> float:
        return ratio(self.weighted, self.seconds)


STOPPED = "stopped"  # the phase of a worker that has ended by SIGTERM
ABSENT = "not there yet"  # the phase of a worker that comes later


@dataclass(slots=True)
class WorkerState:
    """One worker: the last window for the live view, totals for the summary."""

    rank: int
    host: str = ""  # name of its host; empty where the job names none
    phase: str = "starting"
    batch_size: int | None = None
    previous_batch_size: int | None = None
    first_batch_size: int | None = None
    graphs: int = 0  # that torch.compile made
    later_graphs: int = 0  # of them, after the first iteration
    iteration: int = 0
    samples_per_s: float = math.nan  # last window
    shares: dict[str, float] = field(default_factory=dict)  # of the last window's duration, by part
    summed_bytes_per_s: float = math.nan  # last window
    loss: float = math.nan
    accuracy: float = math.nan
    network: NetworkSample = field(default_factory=NetworkSample)  # last window, as this worker sees it
    system: SystemSample = field(default_factory=SystemSample)  # last window
    link: LinkView | None = None  # the newest, joined from both sides; None: there is none
    started_s: float | None = None  # unix time
    last_s: float | None = None  # unix time of its last window
    comm: str | None = None
    comm_version: str | None = None
    samples: int = 0
    windows: int = 0
    totals: dict[str, float] = field(default_factory=dict)  # seconds over all windows by part, and "duration"
    means: dict[str, Mean] = field(default_factory=dict)  # over all windows, of values of the machine and the network
    sources: Counter[str] = field(default_factory=Counter)  # windows by the source of their network values
    train_s: float | None = None
    error: str | None = None

    def go(self, phase: str) -> None:
        """It is not there any more: `lost`, or `left`."""
        self.phase, self.batch_size, self.previous_batch_size = phase, None, None

    def fraction(self, part: str) -> float | None:
        """The part's share of the time of all windows, which leaves pauses (evaluation, checkpoints) out."""
        return self.totals[part] / self.totals["duration"] if self.totals.get("duration") else None

    @property
    def retransmits_per_s(self) -> float:
        """Segments sent again by this worker and to it; of one direction if only that is known."""
        back = self.link.pull_retransmits_per_s if self.link else math.nan
        return known_sum((self.network.retransmits_per_s, back))

    @property
    def slow(self) -> str:
        """What all workers wait for at this worker: "compute", "link", or nothing."""
        return self.link.slow if self.link and self.phase == "running" else ""


@dataclass(slots=True)
class PlanState:
    """A plan, from its publication by the arbitrator until all workers apply it."""

    version: int
    batch_sizes: tuple[int, ...]
    window: int | None = None
    proposed: tuple[int, ...] | None = None  # what the policy asked for, before the guards
    reward: float | None = None  # of the plan before, as known at this decision
    decision_ms: float | None = None
    published_s: float | None = None  # unix time
    iteration: int | None = None  # in force from this iteration on
    applied_s: float | None = None  # unix time at which the last worker had it in force
    applied_by: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Degradation:
    """One degradation, collected over roles and occurrences."""

    what: str
    details: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    open_sources: set[str] = field(default_factory=set)  # those that did not recover since

    def __str__(self) -> str:
        """`network metrics on 3 roles: eBPF: not permitted; using sock_diag`, one line for all who say the same."""
        shown = "; ".join(self.details[:3]) + ("; ..." if len(self.details) > 3 else "")
        recovered = " (recovered)" if self.sources and not self.open_sources else ""
        return self.what + self._who() + (f": {shown}" if shown else "") + recovered

    def _who(self) -> str:
        if not self.sources:
            return ""
        names = ", ".join(sorted(self.sources))
        return f" ({names})" if len(self.sources) <= NAMED else f" on {len(self.sources)} roles"


class Degradations(dict[str, Degradation]):
    """All degradations of a run, by what has degraded."""

    def add(self, what: str, detail: object, source: str) -> None:
        entry = self.setdefault(what, Degradation(what))
        if detail and str(detail) not in entry.details:
            entry.details.append(str(detail))
        entry.sources.add(source)
        entry.open_sources.add(source)

    def recovered(self, what: str, source: str) -> None:
        if what in self:
            self[what].open_sources.discard(source)


def safety_net_text(times: int, windows: int) -> str:
    """How often proportional shares replaced a learned policy, and for how long: `once, 20 windows`."""
    often = "once" if times == 1 else f"{times} times"
    return f"{often}, {windows} window{'s' if windows != 1 else ''}"


def by_worker(texts: Mapping[int, str]) -> str:
    """One text if all ranks have the same, else each with its workers: `ebpf (worker 0, 2), sockdiag (worker 1)`."""
    ranks: dict[str, list[str]] = {}
    for rank, text in sorted(texts.items()):
        ranks.setdefault(text or "none", []).append(str(rank))
    if len(ranks) <= 1:
        return next(iter(ranks), "none")
    return ", ".join(f"{text} (worker {', '.join(who)})" for text, who in ranks.items())
