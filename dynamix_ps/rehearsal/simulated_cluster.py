"""The time of a rehearsed run: it passes by the simulator's cost model, iteration by iteration.

The hook trains; this clock says how long the iteration took on every worker, and at the end of a window what kernel,
machine and servers would have counted.

Runs of one seed share the luck of the cluster: bursts and drift are drawn on a grid of time and jitter by iteration,
so they do not depend on what a policy decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dynamix_ps.messages import NAN, Flow, RoleReport, SystemSample, WindowRecord
from dynamix_ps.sim.cluster import measure
from dynamix_ps.sim.cluster.cost import WindowTimes, drawn_times
from dynamix_ps.sim.cluster.parameters import Parameters, Reals, parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.cluster.views import SOURCE
from dynamix_ps.sim.scenario.load import Scenario
from worker_hooks.observe.stopwatch import NewestSum, Times
from worker_hooks.observe.window import FIRST_WINDOW

_PARTS = 20  # steps within the shortest time of `_shortest_s` (chosen by us)
_REMEMBERED = 2  # iterations beyond those of a window: it closes one iteration after its last
_WARM_UP = 1 + FIRST_WINDOW  # iterations until the first window is over; the first one is in no window
_SIZE, _OVERLAP = "model_bytes", "overlap"  # where a scenario does not name them, the model's gradient decides


class SimulatedCluster:
    """A cluster of W workers, all of which one process computes.

    Attributes:
        time_s: seconds of training so far.
        spent: of every worker so far, in the unit of the plan.
    """

    def __init__(
        self, scenario: Scenario, longest_window: int, rng: np.random.Generator, bucket_bytes: float = 0.0
    ) -> None:
        """A gradient of at most `bucket_bytes` leaves as a whole when backward ends, so nothing hides it."""
        self._parameters = parameters_of((scenario,))
        self._unnamed = {_SIZE, _OVERLAP} - scenario.model_fields_set
        self._bucket_bytes = bucket_bytes
        of_conditions, self._jitter, self._measuring = rng.spawn(3)
        self._conditions = Conditions(self._parameters, of_conditions)
        self._step_s = _shortest_s(self._parameters) / _PARTS
        self._advanced_s = 0.0
        self._longest = longest_window + _REMEMBERED
        self._warm_up_left = _WARM_UP if scenario.warm_up > 1 else 0  # iterations
        self._recent: list[WindowTimes] = []
        self._sizes: Reals = np.zeros(self._parameters.initial.shape, dtype=np.float32)
        self.time_s = 0.0
        self.spent = np.zeros(scenario.n_workers, dtype=np.int64)
        self._counters = _Counters(scenario.n_workers, int(self._parameters.servers[0]))

    def iteration(self, newest: NewestSum) -> tuple[Times, ...]:
        """Time passes by one iteration with these sizes. How every worker spends it."""
        if self._unnamed:
            self._take_gradient(newest.bytes_pushed)
        self._sizes = np.array([newest.spent], dtype=np.float32)
        draws = self._jitter.gumbel(size=self._sizes.shape).astype(np.float32)
        times = drawn_times(self._parameters, self._conditions, self._sizes, draws)
        self._recent = [*self._recent[1 - self._longest :], times]
        lasted_s = float(times.iteration_s[0])
        self.time_s += lasted_s
        self.spent += newest.spent
        self._warm_up_left -= 1
        if self._warm_up_left <= 0:
            self._advance(newest.epochs, times.load)
        return tuple(
            Times(0.0, computing_s, lasted_s - computing_s, lasted_s, NAN, 0.0)
            for computing_s in times.compute_s[0].tolist()
        )

    def _take_gradient(self, size_bytes: int) -> None:
        found = {_SIZE: float(size_bytes)} | ({_OVERLAP: 0.0} if size_bytes <= self._bucket_bytes else {})
        changed: dict[str, Any] = {
            name: np.array([found[name]], dtype=np.float32) for name in self._unnamed & found.keys()
        }
        self._parameters = dataclasses.replace(self._parameters, **changed)
        self._unnamed.clear()

    def _advance(self, epochs: float, load: Reals) -> None:
        """The cluster changes until now. `load` is that of the newest iteration."""
        while self._advanced_s < self.time_s:
            step_s = min(self._step_s, self.time_s - self._advanced_s)
            if step_s < self._step_s < math.inf:
                return  # the rest of a step comes with the next iteration
            self._advanced_s += step_s
            now_s, epoch, elapsed_s = (
                np.array([value], dtype=np.float32) for value in (self._advanced_s, epochs, step_s)
            )
            self._conditions.advance(now_s, epoch, elapsed_s, load)

    def complete(self, records: list[WindowRecord], unix_s: float) -> tuple[list[WindowRecord], list[RoleReport]]:
        """The records of a window that closes now, with what kernel and machine would have counted, and role reports.

        Args:
            records: of all workers, in the order of ranks.
        """
        iterations = records[0].iterations
        parameters = dataclasses.replace(self._parameters, window=np.array([iterations]))
        times = _mean(self._recent[-1 - iterations : -1] or self._recent)
        draw = self._measuring.standard_normal(self._sizes.shape, dtype=np.float32)
        network = measure.links(parameters, self._conditions, times, draw)
        machine = measure.machines(parameters, self._conditions, times, self._sizes)
        knows_network = bool(parameters.knows_network[0])
        source, age_s = (SOURCE, 0.0) if knows_network else ("none", NAN)
        rates, retransmits, rtt_s, busy = (column[0].tolist() for column in network)
        systems = [SystemSample(*values) for values in zip(*(column[0].tolist() for column in machine), strict=True)]
        completed = [
            dataclasses.replace(
                record,
                **dataclasses.asdict(systems[rank]),
                network_source=source,
                network_age_s=age_s,
                push_bytes_per_s=rates[rank],
                pull_bytes_per_s=rates[rank],
                retransmits_per_s=retransmits[rank],
                push_busy=busy[rank],
                rtt_s=rtt_s[rank],
            )
            for rank, record in enumerate(records)
        ]
        if not knows_network or parameters.ring[0]:
            return completed, []
        self._counters.add(self.time_s, rates, retransmits, busy)
        cpu, unread, unsent = (float(column[0]) for column in measure.servers(parameters, times))
        server = SystemSample(cpu_ratio=cpu, cpu_cores=1.0)
        return completed, self._counters.reports(unix_s, systems, server, rtt_s, unread, unsent)


class SimulatedWatch:
    """The watch of one training in a rehearsal: simulated time, which stands still but at the end of an iteration."""

    def __init__(self, cluster: SimulatedCluster, newest: Callable[[], NewestSum]) -> None:
        """`newest` tells the newest sum of the training."""
        self._cluster, self._newest = cluster, newest
        self.waited_s: tuple[float, ...] = (0.0,) * len(cluster.spent)
        self.lasted_s = self.pauses_s = 0.0

    def now_s(self) -> float:
        return self._cluster.time_s

    def begin(self) -> None:
        """Nothing has passed since the end of the last iteration."""

    def loop_begun(self) -> None:
        """Nothing has passed since the end of the last loop."""

    def batch_ready(self) -> None:
        """Input takes no time."""

    def stepped(self) -> None:
        """Nothing passes until the next batch."""

    def compute_so_far_s(self) -> float:
        return 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Evaluations take no time."""
        yield

    @contextmanager
    def blocked(self) -> Iterator[None]:
        yield

    def end(self) -> tuple[Times, ...]:
        times = self._cluster.iteration(self._newest())
        self.waited_s = tuple(one.blocked_s for one in times)
        self.lasted_s = times[0].duration_s
        return times


class _Counters:
    """What the kernels of workers and servers have counted of the connections between them, one for each pair."""

    def __init__(self, workers: int, servers: int) -> None:
        self._servers = servers
        self._until_s = 0.0
        self._bytes, self._retransmits, self._busy_s = (np.zeros(workers) for _ in range(3))

    def add(self, now_s: float, bytes_per_s: list[float], retransmits_per_s: list[float], busy: list[float]) -> None:
        """Until now, and since the last call, workers had these rates in each direction."""
        seconds, self._until_s = now_s - self._until_s, now_s
        self._bytes += seconds * np.array(bytes_per_s) / self._servers
        self._retransmits += seconds * np.array(retransmits_per_s) / self._servers
        self._busy_s += seconds * np.array(busy)

    def reports(
        self,
        unix_s: float,
        workers: list[SystemSample],
        server: SystemSample,
        rtt_s: list[float],
        unread: float,
        unsent: float,
    ) -> list[RoleReport]:
        """Of every worker and every server. `unread`, `unsent`: bytes that wait in a server."""
        reports = []
        for rank, system in enumerate(workers):
            flows = tuple(self._flow(rank, place, rtt_s[rank]) for place in range(self._servers))
            reports.append(_report(f"worker-{rank}", "worker", rank, unix_s, flows, system))
        waiting = {"unread_bytes": unread / len(workers), "unsent_bytes": unsent / len(workers)}
        for place in range(self._servers):
            flows = tuple(
                dataclasses.replace(flow, local=flow.remote, remote=flow.local, **waiting)
                for flow in (self._flow(rank, place, rtt_s[rank]) for rank in range(len(workers)))
            )
            reports.append(_report(f"server-{place}", "server", -1, unix_s, flows, server))
        return reports

    def _flow(self, rank: int, place: int, rtt_s: float) -> Flow:
        """The connection of a worker to a server, from the worker's end."""
        counted = float(self._bytes[rank])
        retransmits, busy_s = float(self._retransmits[rank]), float(self._busy_s[rank])
        return Flow(f"worker-{rank}:{place}", f"server-{place}:{rank}", counted, counted, retransmits, busy_s, rtt_s)


def _report(
    name: str, role: str, rank: int, unix_s: float, flows: tuple[Flow, ...], system: SystemSample
) -> RoleReport:
    return RoleReport(name, role, rank, name, 0, unix_s, SOURCE, 0.0, flows, system)


def _shortest_s(parameters: Parameters) -> float:
    """The shortest time in which the cluster changes at random or again and again; infinite where it does neither."""
    bursty = np.isfinite(parameters.burst_gap_s)
    times_s = [parameters.burst_gap_s[bursty], parameters.burst_length_s[bursty]]
    times_s.append(parameters.drift_s[parameters.drift > 0])
    recurs = np.isfinite(parameters.event_every)
    times_s.append((parameters.event_until - parameters.event_from)[recurs])
    return float(np.concatenate(times_s).min(initial=np.inf))


def _mean(several: list[WindowTimes]) -> WindowTimes:
    """Means over iterations."""
    names = [field.name for field in dataclasses.fields(WindowTimes)]
    return WindowTimes(**{name: np.mean([getattr(one, name) for one in several], axis=0) for name in names})
