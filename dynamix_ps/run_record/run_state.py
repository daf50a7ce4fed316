"""The state of a run so far, built from the lines of the workers and of the arbitrator's journal."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

from dynamix_ps.messages import Flow, LinkView, NetworkSample, ServerView, SystemSample
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.run_record.evaluations import Evaluation, evaluation_of
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.losses import MembershipHistory
from dynamix_ps.run_record.model import (
    ABSENT,
    TIME_PARTS,
    Degradation,
    Mean,
    PlanState,
    WorkerState,
    safety_net_text,
)
from dynamix_ps.run_record.resumption import Resumption
from dynamix_ps.run_record.traffic import TrafficLedger
from dynamix_ps.run_record.values import filled, known_sum, number, ratio

EVENTS_KEPT = 50
# How roles come and go. When the launcher ends the job, all of them end, which is no story to tell.
_COMINGS_AND_GOINGS = frozenset(
    {"lost", "members", "short", "short_of_workers", "finishing", "lease_lost", "role_ended", "scheduler_exit"}
    | {"worker_left", "workers_entered", "servers_entered"}
)
PROGRESS_KEPT = 30  # windows from which the time to go is estimated (chosen by us)


class RunState:
    """Updated by every line. `later`: workers that are not there when the job begins. `run`, `policy`, `counted`
    (samples or tokens) and `hosts` (of each worker by its rank, if the job names hosts) are for the live view; all else
    comes from the lines."""

    def __init__(
        self,
        n_workers: int,
        run: str = "run",
        policy: str = "-",
        counted: str = "samples",
        hosts: Sequence[str] = (),
        later: Collection[int] = (),
    ) -> None:
        self.run, self.policy, self.counted = run, policy, counted
        self._n_workers = n_workers
        self.workers = {rank: WorkerState(rank) for rank in range(n_workers)}
        for rank, host in enumerate(hosts):
            self.workers[rank].host = host
        for rank in later:
            self.workers[rank].phase = ABSENT
        self.servers: dict[str, ServerView] = {}  # newest, by name; the scheduler too
        self.traffic = TrafficLedger()
        self.noise = SmoothedNoise()  # of the gradient, as rank 0 told it; the same on every worker
        self.prometheus: str | None = None  # address of the arbitrator's endpoint
        self.plans: dict[int, PlanState] = {}
        self.observed: list[PlanState] = []
        self.evaluations: list[Evaluation] = []
        self.degradations: dict[str, Degradation] = {}
        self.events: deque[Line] = deque(maxlen=EVENTS_KEPT)
        self.n_events = 0
        self.plan_version = 0
        self._progress: deque[tuple[float, float]] = deque(maxlen=PROGRESS_KEPT)  # (Unix time, trained ratio) of rank 0
        self._paused_from_s: float | None = None  # Unix time, of rank 0's pause at hand
        self._pauses_s = 0.0  # those that are over
        self.fallbacks = 0  # times the safety net took over from the policy
        self.fallback_windows = 0  # decisions it made in the policy's place
        self.lr_guard = 1.0  # newest, of rank 0: what the guard leaves of the learning rate
        self.rollbacks: list[int] = []  # iterations in which the guard of the learning rate took the weights back
        self.losses = MembershipHistory()
        self.resumption = Resumption()
        self.is_stopping = False  # the launcher ends an elastic job
        self.restart: str | None = None  # with which a job that was lost as a whole has begun again
        self.arbitrator_starts = 0
        self.arbitrator_restarts = 0

    @property
    def several_hosts(self) -> bool:
        """Whether workers are known to be on different hosts."""
        return len({worker.host for worker in self.workers.values()}) > 1

    @property
    def workers_by_host(self) -> list[WorkerState]:
        """Host by host, in the order of their lowest ranks."""
        first: dict[str, int] = {}
        ranks = sorted(self.workers)
        for rank in ranks:
            first.setdefault(self.workers[rank].host, rank)
        return [self.workers[rank] for rank in sorted(ranks, key=lambda rank: (first[self.workers[rank].host], rank))]

    @property
    def there(self) -> list[WorkerState]:
        """The workers that have come, and are neither lost nor have left."""
        gone = self.losses.lost("worker") | self.losses.left
        return [worker for rank, worker in self.workers.items() if rank not in gone and worker.phase != ABSENT]

    @property
    def serving(self) -> list[ServerView]:
        """The servers that are not lost, and the scheduler, by name."""
        lost = {f"server-{number}" for number in self.losses.lost("server")}
        return [server for name, server in sorted(self.servers.items()) if name not in lost]

    def _leads(self, line: Line) -> bool:
        """Whether a line is of the worker that tells what is the same on all: the first that is there."""
        return bool(line["rank"] == min((worker.rank for worker in self.there), default=0))

    @property
    def iteration(self) -> int:
        return max((worker.iteration for worker in self.workers.values()), default=0)

    @property
    def global_batch(self) -> int | None:
        sizes = [worker.batch_size for worker in self.there]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def started_s(self) -> float | None:
        """Unix time at which training began on rank 0, whose clock also stamps the evaluations."""
        return self.workers[0].started_s

    def paused_s(self, now_s: float) -> float:
        """Seconds of pauses (evaluations, checkpoints) on rank 0 until `now_s` (Unix time)."""
        return self._pauses_s + (0.0 if self._paused_from_s is None else max(now_s - self._paused_from_s, 0.0))

    @property
    def time_to_go_s(self) -> float | None:
        """Seconds from rank 0's newest window to the end, at the pace of its last windows, pauses included.

        None while it is not known, and when all workers have finished.
        """
        if len(self._progress) < 2 or all(worker.train_s is not None for worker in self.there):
            return None
        (began_s, ratio_before), (newest_s, ratio_now) = self._progress[0], self._progress[-1]
        gained = ratio_now - ratio_before
        return (newest_s - began_s) * (1 - ratio_now) / gained if gained > 0 else None

    @property
    def safety_net(self) -> str:
        """How often and how long the safety net acted, in words; empty if it never did."""
        return safety_net_text(self.fallbacks, self.fallback_windows) if self.fallbacks else ""

    def applied_plans(self) -> list[PlanState]:
        """Plans that every worker applied that is there, oldest first."""
        there = {worker.rank for worker in self.there}
        whole = [plan for plan in self.plans.values() if plan.applied_by and plan.applied_by >= there]
        return sorted(whole, key=lambda plan: plan.version)

    def apply(self, source: str, line: Line) -> None:
        """Take in one line. Raises what `UNUSABLE` names if it does not have what its kind needs."""
        kind = line["kind"]
        if self.is_stopping and kind in _COMINGS_AND_GOINGS:
            return
        handler = (_JOURNAL if source == "arbitrator" else _WORKER).get(kind)
        if handler is not None:
            handler(self, line)
        if kind == "degraded":
            self._degrade(line["what"], line.get("detail"), source)
        elif kind == "recovered" and line["what"] in self.degradations:
            self.degradations[line["what"]].open_sources.discard(source)

    def note(self, event: Line) -> None:
        """Keep an event for the live view."""
        self.events.append(event)
        self.n_events += 1

    def _degrade(self, what: str, detail: object, source: str) -> None:
        entry = self.degradations.setdefault(what, Degradation(what))
        if detail and str(detail) not in entry.details:
            entry.details.append(str(detail))
        entry.sources.add(source)
        entry.open_sources.add(source)

    def _worker(self, line: Line) -> WorkerState:
        return self.workers[line["rank"]]

    def _of_every_worker(self, sizes: Sequence[int]) -> tuple[int, ...]:
        if len(sizes) != self._n_workers:
            raise ValueError(f"{len(sizes)} batch sizes are there, of {self._n_workers} workers")
        return tuple(sizes)

    def _started(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase, worker.error = "running", None
        worker.comm, worker.comm_version = line["comm"], line["comm_version"]
        worker.iteration = max(worker.iteration, line["iteration"])
        if worker.started_s is None:
            worker.started_s = line["time_s"]
            worker.first_batch_size = line["batch_size"]
        worker.batch_size = line["batch_size"]

    def _window(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase = "running"
        worker.batch_size = line["batch_size"]
        worker.iteration = line["first_iteration"] + line["iterations"]
        worker.last_s = line["time_s"]
        worker.loss, worker.accuracy = number(line["loss"]), number(line["accuracy"])
        worker.summed_bytes_per_s = number(line.get("summed_bytes_per_s"))
        worker.network, worker.system = filled(NetworkSample, line), filled(SystemSample, line)
        worker.sources[worker.network.network_source] += 1
        for name, value in (
            ("summed_bytes_per_s", worker.summed_bytes_per_s),
            ("units_per_s", ratio(number(line.get("units")), number(line["duration_s"]))),
            ("rtt_s", worker.network.rtt_s),
            ("throttled", worker.system.throttled),
            ("cpu_share", ratio(worker.system.cpu_ratio, worker.system.cpu_cores)),
        ):
            worker.means.setdefault(name, Mean()).add(value, number(line["duration_s"]))
        if self._leads(line):
            noise = GradientNoise(number(line.get("noise_variance")), number(line.get("noise_signal")))
            self.noise.update(noise, number(line.get("grad_sq_global")))
            if not math.isnan(left := number(line.get("lr_guard"))):
                self.lr_guard = left
            if not math.isnan(trained := number(line.get("trained_ratio"))):
                self._progress.append((line["time_s"], trained))
        worker.windows += 1
        worker.samples += line["samples"]
        seconds = {part: number(line[f"{part}_s"]) for part in TIME_PARTS} | {"duration": number(line["duration_s"])}
        duration = seconds["duration"]
        if duration > 0:
            worker.samples_per_s = line["samples"] / duration
            worker.shares = {part: seconds[part] / duration for part in TIME_PARTS}
        for part, value in seconds.items():
            worker.totals[part] = worker.totals.get(part, 0.0) + (0.0 if math.isnan(value) else value)

    def _plan_applied(self, line: Line) -> None:
        version, sizes = line["version"], self._of_every_worker(line["batch_sizes"])
        worker = self._worker(line)
        worker.previous_batch_size, worker.batch_size = worker.batch_size, sizes[worker.rank]
        self.plan_version = max(self.plan_version, version)
        if version == 0:
            return
        plan = self.plans.setdefault(version, PlanState(version, sizes))
        plan.iteration = line["iteration"]
        plan.applied_by.add(worker.rank)
        plan.applied_s = max(plan.applied_s or 0.0, line["time_s"])

    def _rollback(self, line: Line) -> None:
        if self._leads(line):  # all do at once
            self.rollbacks.append(line["iteration"])

    def _paused(self, line: Line) -> None:
        if self._leads(line):
            self._paused_from_s = line["time_s"]

    def _resumed(self, line: Line) -> None:
        if self._leads(line):
            self._pauses_s = self.paused_s(line["time_s"])
            self._paused_from_s = None

    def _evaluation(self, line: Line) -> None:
        began = self.started_s if self.started_s is not None else line["time_s"]
        self._worker(line).iteration = line["iteration"]
        self.evaluations.append(evaluation_of(line, began))

    def _went_on(self, line: Line) -> None:
        self.resumption.went_on(line)
        self._worker(line).iteration = line["iteration"]

    def _stopping(self, line: Line) -> None:
        self.is_stopping = True

    def _terminated(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase, worker.iteration = "stopped", max(worker.iteration, line["iteration"])

    def _stall(self, line: Line) -> None:
        worker = self._worker(line)
        servers = line.get("missing_servers", [])
        worker.phase = f"waits for {', '.join([*map(str, line['missing']), *servers]) or 'unknown'}"
        names = ", ".join([*(f"worker {rank}" for rank in line["missing"]), *servers]) or "an unknown role"
        detail = f"iteration {line['iteration']} waited for {names}"
        self._degrade("stall", detail, f"worker-{worker.rank}")

    def _short(self, line: Line) -> None:
        self.losses.short(line["iteration"], line["missing"])

    def _finished(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase = "finished"
        worker.iteration, worker.samples, worker.train_s = line["iterations"], int(line["samples"]), line["train_s"]

    def _compiled(self, line: Line) -> None:
        worker = self._worker(line)
        worker.graphs += line["graphs"]
        worker.later_graphs += line["later"]

    def _failed(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase, worker.error = "failed", str(line["error"])

    def _role(self, line: Line) -> None:
        """A report of connections and machine. The rates of a server are in the arbitrator's next `links` line."""
        flows = [filled(Flow, flow) for flow in line["flows"]]
        self.traffic.add(line["name"], line["rank"], flows)
        if line["role"] == "worker":
            return
        before = self.servers.get(line["name"], ServerView(line["name"]))
        self.servers[before.name] = dataclasses.replace(
            before,
            unread_bytes=known_sum(flow.unread_bytes for flow in flows),
            unsent_bytes=known_sum(flow.unsent_bytes for flow in flows),
            system=filled(SystemSample, line["system"]),
            source=line["network_source"],
            age_s=number(line["network_age_s"]),
        )

    def _links(self, line: Line) -> None:
        """Both sides of every worker's connections, joined by the arbitrator when a window closed."""
        for link in (filled(LinkView, link) for link in line["links"]):
            self.workers[link.rank].link = link
        for server in (filled(ServerView, server) for server in line["servers"]):
            self.servers[server.name] = server

    def _prometheus(self, line: Line) -> None:
        self.prometheus = line["address"]

    def _arbitrator_started(self, line: Line) -> None:
        self.arbitrator_starts += 1
        self.arbitrator_restarts = max(self.arbitrator_starts - 1, line.get("restarts") or 0)

    def _kept(self, line: Line) -> None:
        self.fallback_windows += bool(line.get("fallback"))

    def _fallback(self, line: Line) -> None:
        self.fallbacks += 1

    def _plan(self, line: Line) -> None:
        self._kept(line)
        known = self.plans.get(line["version"])
        plan = self._published(line)
        if known is not None:  # a worker's line was read first
            plan.iteration, plan.applied_s, plan.applied_by = known.iteration, known.applied_s, known.applied_by
        self.plans[plan.version] = plan

    def _observed(self, line: Line) -> None:
        self._kept(line)
        self.observed.append(self._published(line))

    def _published(self, line: Line) -> PlanState:
        proposed: Sequence[int] | None = line.get("proposed")
        return PlanState(
            version=line["version"],
            batch_sizes=self._of_every_worker(line["batch_sizes"]),
            window=line.get("window"),
            proposed=None if proposed is None else self._of_every_worker(proposed),
            reward=line.get("reward"),
            decision_ms=line.get("decision_ms"),
            published_s=line.get("time_s"),
        )

    def _role_ended(self, line: Line) -> None:
        self.losses.ended((line["role"], line["slot"]), line["ended_s"])

    def _scheduler_exit(self, line: Line) -> None:
        self.losses.scheduler(line["how"], line["restart_in_s"])

    def _job_restarted(self, line: Line) -> None:
        self.restart = f"restart {line['restarts']} of the job, from {line['checkpoint']}"

    def _lost(self, line: Line) -> None:
        lost = line["role"], line["slot"]
        self.losses.known(lost, line["time_s"], line["reason"], line.get("incarnation", ""))
        if line["role"] == "worker":
            self.workers[line["slot"]].go("lost")

    def _worker_left(self, line: Line) -> None:
        worker = self._worker(line)
        worker.go("left")
        worker.iteration = line["iteration"]
        self.losses.departed(worker.rank, line["iteration"], line["workers"])

    def _workers_entered(self, line: Line) -> None:
        self.losses.entered(line["entered"], line["iteration"], line["workers"])
        for rank in line["entered"]:
            self.workers[rank].phase = "running"

    def _servers_entered(self, line: Line) -> None:
        self.losses.servers_entered(line["entered"], line["iteration"])

    def _members(self, line: Line) -> None:
        self.losses.changed({"worker": len(line["workers"]), "server": len(line["servers"])}, line["took_s"])

    def _short_of_workers(self, line: Line) -> None:
        self.losses.too_few = f"{line['workers']} are left, elastic.min_workers is {line['min_workers']}"

    def _finishing(self, line: Line) -> None:
        self.losses.finishing = True

    def _lease_lost(self, line: Line) -> None:
        worker = self._worker(line)
        if worker.phase == "running":
            worker.phase = "silent"

    def _lease_back(self, line: Line) -> None:
        worker = self._worker(line)
        if worker.phase == "silent":
            worker.phase = "running"


_WORKER: dict[str, Callable[[RunState, Line], None]] = {
    "started": RunState._started,
    "window": RunState._window,
    "plan_applied": RunState._plan_applied,
    "rollback": RunState._rollback,
    "paused": RunState._paused,
    "resumed": RunState._resumed,
    "evaluation": RunState._evaluation,
    "stall": RunState._stall,
    "finished": RunState._finished,
    "terminated": RunState._terminated,
    "stopping": RunState._stopping,
    "launch": lambda state, line: state.resumption.launched(line),
    "went_on": RunState._went_on,
    "saved": lambda state, line: state.resumption.was_saved(line),
    "compiled": RunState._compiled,
    "short": RunState._short,
    "role_ended": RunState._role_ended,
    "scheduler_exit": RunState._scheduler_exit,
    "job_restarted": RunState._job_restarted,
    "worker_left": RunState._worker_left,
    "workers_entered": RunState._workers_entered,
    "servers_entered": RunState._servers_entered,
    "failed": RunState._failed,
    "role": RunState._role,
}
_JOURNAL = {
    "started": RunState._arbitrator_started,
    "plan": RunState._plan,
    "observed": RunState._observed,
    "kept": RunState._kept,
    "fallback": RunState._fallback,
    "links": RunState._links,
    "prometheus": RunState._prometheus,
    "lost": RunState._lost,
    "members": RunState._members,
    "short_of_workers": RunState._short_of_workers,
    "finishing": RunState._finishing,
    "lease_lost": RunState._lease_lost,
    "lease_back": RunState._lease_back,
}
