"""The arbitrator: window records in, plans out.

    register -> a worker gets a lease, and a part where it comes late     registry.py, places.py
    report   -> its record joins the others of the same window            windows.py
    observe  -> joins what workers and servers see of a connection        links.py, diagnosis.py
    step     -> window complete -> policy -> guard -> journal -> publish  policy/, planner.py, journal.py
    plans    -> every worker's stream carries the new plan
    lose     -> a worker is gone, and the next plan is of the others      places.py
    learn    -> a policy with enough experience learns, beside the decisions

Training never waits for the arbitrator. Everything runs in one event loop, except writing to disk and learning, which
run in a thread: heartbeats continue during both, and decisions do not wait for learning.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.arbitrator.diagnosis import labelled
from dynamix_ps.arbitrator.journal import Journal, Resumed
from dynamix_ps.arbitrator.links import LinkReports
from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.arbitrator.planner import guard, next_plan
from dynamix_ps.arbitrator.registry import Registry
from dynamix_ps.arbitrator.windows import MANY, ClosedWindow, Windows
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.policy.base import Decision, Learner, Policy, View, ask, largest_total, reference_batch
from dynamix_ps.policy.rate.decider import RateDecider
from dynamix_ps.rpc.plan_rules import LARGEST_VERSION, wrong_lr_factor, wrong_sizes, wrong_version
from dynamix_ps.rpc.refusals import MalformedMessageError, TooManyStreamsError

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

logger = logging.getLogger("dynamix.arbitrator")

MAX_STREAMS_PER_WORKER = 4  # it uses one; those before it may not have ended yet
PEERS_S = 2.5e-4  # all workers ask for the states of all; at this age, making them takes about 1 % of a core
MAX_REFUSAL_TEXTS = 100  # at most so many different refusals are journaled; all are counted


class Arbitrator:
    """The service of one run.

    Args:
        resumed: what earlier arbitrators of this run journaled; empty in a new run.
        policy_file: where a learning policy is saved after every update.
        clock: monotonic seconds.
        exporter: gets every closed window.
        n_servers: how many were started; None: those of the cluster file, where `auto` counts as one.
        rest: called when a decision is out, and about once a second while no report of a window is there: for work that
            holds the event loop up.

    Raises:
        EnvironmentNotReady: the journal is of a cluster of another size.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        journal: Journal,
        resumed: Resumed,
        policy_file: Path,
        clock: Callable[[], float] = time.monotonic,
        exporter: Exporter | None = None,
        n_servers: int | None = None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._journal = journal
        self._policy_file = policy_file
        self._clock = clock
        self._exporter = exporter
        self._rest = rest
        self._n_workers = len(config.cluster.workers)
        self._largest = [config.bounds(rank)[1] for rank in range(self._n_workers)]
        self._accepted = tuple(config.accepted_bounds(rank) for rank in range(self._n_workers))
        self._at_once = [config.at_once(rank) or math.nan for rank in range(self._n_workers)]  # NaN: no limit is known
        self._ring = config.data_plane.is_ring
        self._registry = Registry(self._n_workers, config.timeouts.lease_s, resumed.retired)
        self._links = LinkReports(self._n_workers, n_servers or len(role_hosts(config.cluster).servers))
        self._windows = Windows(self._n_workers, closed=resumed.window)
        self._first_sizes = config.initial_sizes()
        self._plan = resumed.plan or Plan(0, self._first_sizes)
        if len(self._plan.batch_sizes) != self._n_workers:
            raise EnvironmentNotReady(
                f"arbitrator: the journal's plan has {len(self._plan.batch_sizes)} sizes, but the cluster file has "
                f"{self._n_workers} workers; use the run folder of this cluster, or a new one"
            )
        self._places = WorkerPlaces(config, self._plan)
        for rank in self._places.empty:
            self._registry.lose(rank)  # no decision waits for it
        # who has said so, and whose process has left the job: the others go on if a window is complete without them
        self._leaving: set[int] = set()
        self._departed: set[int] = set()
        self._bounds_at_once = self._within_memory()  # for policies
        self._newest_version = max(resumed.newest_version, self._plan.version)
        self._holding = resumed.starts > 0  # after a restart, sizes stay for one complete window
        self._rate = RateDecider(self._holding) if config.lr == "decide" else None
        self._decisions = resumed.decisions
        self._refusals: Counter[str] = Counter()
        self._learning: asyncio.Task[None] | None = None
        self._absent = 0  # workers, when leases were last checked
        self._told_overdue = False
        self._wake = asyncio.Event()
        self._new_plan = asyncio.Event()
        self._peers: tuple[PeerStatus, ...] = ()  # as they were at _peers_s
        self._peers_s = -math.inf
        self._held: dict[int, Plan] = {}  # the newest plan a worker held when it registered, by rank
        self._streams: Counter[int] = Counter()  # open streams of plans by rank
        self._restarts = resumed.starts

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._plan

    # Calls of workers and other roles

    def register(self, registration: Registration) -> Plan:
        """Take in a worker and return the newest plan. Idempotent.

        A worker that resumes from a checkpoint, or that outlived a journal, may hold a newer plan (see `_adopt`).

        Raises:
            MalformedMessageError, StaleIncarnationError: no such worker, it was replaced, or no plan can be like that.
        """
        rank, held = registration.rank, registration.plan
        problem = (
            wrong_version(held.version, 0, LARGEST_VERSION)
            or wrong_sizes(held.batch_sizes, self._accepted)
            or wrong_lr_factor(held.lr_factor)
        )
        if problem:
            raise MalformedMessageError(f"plan.{problem}")
        if is_new := self._registry.register(rank, registration.incarnation, self._clock()):
            self._departed.discard(rank)
            if rank in self._leaving:
                self._leaving.clear()  # all have left a training that was over, and register for the next one
            self._journal.write(
                "registered",
                rank=rank,
                incarnation=registration.incarnation,
                host=registration.host,
                pid=registration.pid,
                plan_version=held.version,
            )
        self._heard(rank, registration.incarnation)
        self._held[rank] = held
        if held.version == self._plan.version == 0 and held != self._plan:  # a static policy has first sizes of its own
            self._publish(held)
        self._adopt()
        enters = is_new and rank in self._places.empty
        self._resize(self._places.taking_in(rank, self._plan) if enters else self._places.without_empty(self._plan))
        return self._plan

    def _resize(self, wanted: Plan) -> None:
        """Make a plan with the sizes of `wanted`, which the workers have already given themselves."""
        plan = next_plan(wanted.batch_sizes, self._plan.lr_factor, self._plan, self._newest_version)
        if plan is not None and any(plan.batch_sizes):
            self._journal.write("adopted", **dataclasses.asdict(plan))
            self._publish(plan)

    def _adopt(self) -> None:
        """Take over newer plans that workers hold, if they are at most one version ahead of what is known.

        Known is what the journal says and what another worker holds. Workers that resume from a checkpoint hold the
        same plan. One that is far ahead of all others is wrong, and would leave no versions for later plans.
        """
        newer = {rank: plan for rank, plan in self._held.items() if plan.version > self._plan.version}
        for rank, held in sorted(newer.items(), key=lambda item: item[1].version):
            others = [plan.version for other, plan in self._held.items() if other != rank]
            known = max([self._newest_version, *others]) if self._n_workers > 1 else held.version
            if held.version <= known + 1:
                self._journal.write("adopted", **dataclasses.asdict(held))
                self._publish(held)

    def report(self, incarnation: str, record: WindowRecord) -> None:
        """Take in a window record. Idempotent; a late record changes nothing. Raises RefusalError."""
        self._heard(record.rank, incarnation)
        self._check(record)
        counts = self._windows.add(record, self._clock(), self._registry.live)
        if counts and self._windows.most_reported >= self._n_workers - self._absent:
            self._wake.set()  # not at every report: a step looks at all workers

    def _check(self, record: WindowRecord) -> None:
        """Raises MalformedMessageError if the record is of a plan that this worker cannot hold."""
        problem = wrong_version(record.plan_version, max(self._newest_version, self._held[record.rank].version), 0)
        if problem:
            raise MalformedMessageError(f"plan_{problem}")
        largest = self._largest[record.rank]
        if record.batch_size > largest:
            raise MalformedMessageError(f"batch_size: got {record.batch_size}, expected at most {largest}")

    def observe(self, report: RoleReport) -> None:
        """Take in what a role reports of its connections and its machine; an old report changes nothing.

        Raises MalformedMessageError for a worker that does not belong to this cluster.
        """
        if report.rank >= self._n_workers:
            raise MalformedMessageError(f"rank: got {report.rank}, expected 0..{self._n_workers - 1}")
        self._links.add(report, self._clock())

    def heartbeat(self, rank: int, incarnation: str, iteration: int) -> tuple[PeerStatus, ...]:
        """Renew a lease and return the state of all workers, up to PEERS_S per worker old. Raises RefusalError."""
        self._heard(rank, incarnation, iteration)
        now_s = self._clock()
        if now_s - self._peers_s >= PEERS_S * self._n_workers:
            self._peers, self._peers_s = self._registry.peers(now_s), now_s
        return self._peers

    def leave(self, rank: int, incarnation: str) -> None:
        """Stop waiting for this worker, which leaves on notice, or whose training is over. Raises RefusalError."""
        if self._registry.leave(rank, incarnation):
            self._journal.write("left", rank=rank)
            if self._config.elastic.min_workers is not None:
                self._leaving.add(rank)
            self._wake.set()

    def lose(self, rank: int) -> None:
        """The job goes on without this worker: no decision waits for it, and the next plan has nothing for it."""
        self._registry.lose(rank)
        self._let_go([rank])
        self._wake.set()

    def depart(self, rank: int) -> None:
        """This worker has left the job, as the coordinator knows: its process ends."""
        self._registry.lose(rank)
        self._departed.add(rank)
        self._wake.set()

    def _let_go(self, ranks: Iterable[int]) -> None:
        self._places.empty.update(ranks)
        self._resize(self._places.without_empty(self._plan))

    async def plans(self, rank: int, incarnation: str, newest_version: int) -> AsyncIterator[Plan]:
        """Every plan newer than `newest_version`, as soon as it exists; a slow reader skips. Raises RefusalError."""
        self._heard(rank, incarnation)
        if self._streams[rank] >= MAX_STREAMS_PER_WORKER:
            raise TooManyStreamsError(f"worker {rank} has {MAX_STREAMS_PER_WORKER} streams of plans already")
        self._streams[rank] += 1
        try:
            while True:
                changed = self._new_plan
                if self._plan.version > newest_version:
                    newest_version = self._plan.version
                    yield self._plan
                else:
                    await changed.wait()
        finally:
            self._streams[rank] -= 1

    def refused(self, text: str) -> None:
        """Count a refused call; journal each reason once."""
        if text not in self._refusals and len(self._refusals) < MAX_REFUSAL_TEXTS:
            logger.warning("refused: %s", text)
            self._journal.write("rejected", detail=text)
        self._refusals[text if len(self._refusals) < MAX_REFUSAL_TEXTS else "other"] += 1

    # What the service does on its own

    async def run(self) -> None:
        """Decide whenever a window is complete, until cancelled."""
        self._journal.write("started", policy=self._policy.name, workers=self._n_workers, restarts=self._restarts)
        tick_s = min(1.0, self._config.timeouts.lease_s / 4)
        try:
            while True:
                try:
                    await asyncio.wait_for(self._wake.wait(), tick_s)
                except asyncio.TimeoutError:
                    if not self._windows.most_reported:
                        self._rest()
                self._wake.clear()
                await self.step()
        finally:
            if self._learning is not None and self._learning.cancel():
                await asyncio.wait((self._learning,))

    async def step(self) -> None:
        """Check leases and windows once; decide if a window is ready. At most one plan per window."""
        now_s = self._clock()
        for rank in self._registry.expire(now_s):
            logger.warning("worker %d is silent for more than %g s", rank, self._config.timeouts.lease_s)
            self._journal.write("lease_lost", rank=rank)
        if not self._registry.live():
            return
        absent = self._registry.absent(now_s)
        self._absent = len(absent)
        closed = self._windows.ready(absent, self._config.timeouts.lease_s, now_s)
        if closed is not None:
            await self._decide(closed)
            self._begin_learning()
            self._rest()
        elif not self._told_overdue and (
            missing := self._windows.overdue(absent, self._config.timeouts.lease_s, now_s)
        ):
            self._told_overdue = True
            self._degraded("decisions", f"none for {MANY} windows, so batch sizes stay as they are: {missing}")

    async def settled(self) -> None:
        """Wait until an update that is under way is complete."""
        if self._learning is not None:
            await self._learning

    def close(self) -> None:
        """Journal the end. The caller closes the journal."""
        self._journal.write("stopped", decisions=self._decisions, refused=sum(self._refusals.values()))

    async def _decide(self, closed: ClosedWindow) -> None:
        """From a closed window to a new plan, or to the decision to keep the present one. Both count as decisions."""
        began_s = time.perf_counter()
        closed = self._of_those_there(closed)
        view = self._view(closed)
        decision = self._ask(view, closed.timed_out)
        guarded = guard(decision.batch_sizes, self._plan.batch_sizes, view.bounds, view.largest_total)
        lr_factor = self._rate.factor(view, decision.lr_step) if self._rate else 1.0
        plan = next_plan(guarded.batch_sizes, lr_factor, self._plan, self._newest_version)
        self._decisions += 1
        kind = "kept" if plan is None else ("plan" if self._config.mode == "adapt" else "observed")
        version = plan.version if plan is not None and kind == "plan" else self._plan.version
        self._newest_version = max(self._newest_version, version)  # workers may come and go while it is written
        line = {
            "version": version,
            "batch_sizes": guarded.batch_sizes,
            "lr_factor": lr_factor,
            "window": closed.window,
            "reported": [record.rank for record in view.reported],  # later records were not known to this decision
            "timed_out": closed.timed_out,
            "proposed": decision.batch_sizes,
            "proposed_lr_step": decision.lr_step,
            "corrected": guarded.corrected,
            "reward": decision.reward,
            "fallback": decision.fallback,
            "decision_ms": 1000 * (decision_s := time.perf_counter() - began_s),
        }
        await asyncio.to_thread(self._journal.write, kind, sync=True, **line)
        if plan is not None and kind == "plan" and plan.version > self._plan.version:
            self._publish(plan)
        view = dataclasses.replace(view, links=labelled(closed.records, view.links))  # for people, no policy reads it
        if decision.note:
            self._journal.write("fallback" if decision.fallback else "note", window=view.window, detail=decision.note)
        await asyncio.to_thread(self._write_links, view)
        self._export(view, decision, decision_s)

    def _within_memory(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._config.bounds_at_once(rank, at_once) for rank, at_once in enumerate(self._at_once))

    def _of_those_there(self, closed: ClosedWindow) -> ClosedWindow:
        """Let those go that have left if none of them is in it: the others go on. Who is gone now may be in it."""
        left = self._departed | self._leaving
        if left and all(closed.records[rank] is None for rank in left):
            self._let_go(left)
        records = (None if rank in self._places.empty else record for rank, record in enumerate(closed.records))
        return dataclasses.replace(closed, records=tuple(records))

    def _view(self, closed: ClosedWindow) -> View:
        now_s = self._clock()
        links, servers = self._links.links(now_s), self._links.servers(now_s)
        self._links.settle()
        for record in closed.records:
            known = math.nan if record is None else record.at_once
            if record is not None and not math.isnan(known) and known != self._at_once[record.rank]:
                self._at_once[record.rank] = known
                self._bounds_at_once = self._within_memory()
        return View(
            closed.window,
            self._plan,
            self._places.within(self._bounds_at_once),
            closed.records,
            links,
            servers,
            self._config.lr_rule,
            reference_batch=reference_batch(closed.records, self._first_sizes),
            lr_steps=self._rate.observe(closed.records) if self._rate else (1.0,),
            largest_total=largest_total(closed.records),
            ring=self._ring,
        )

    def _write_links(self, view: View) -> None:
        if view.links or view.servers:
            self._journal.write("links", window=view.window, links=view.links, servers=view.servers)

    def _export(self, view: View, decision: Decision, decision_s: float) -> None:
        """Give the window to the exporter. An exporter that fails is not used again."""
        if self._exporter is None:
            return
        try:
            self._exporter.observe(view, decision, decision_s)
        except Exception as error:  # training does not depend on the exporter
            self._exporter = None
            self._degraded("prometheus", f"the endpoint shows no more windows: {error!r}")

    def _ask(self, view: View, timed_out: bool) -> Decision:
        """The policy's answer; the present plan right after a restart, the present sizes if the policy fails."""
        keep = Decision(view.plan.batch_sizes)
        if self._holding:
            self._holding = timed_out
            return dataclasses.replace(keep, lr_step=1.0)
        try:
            return ask(self._policy, view)
        except Exception as error:  # any fault of a policy: sizes stay and training goes on
            self._degraded("policy", f"{self._policy.name} failed in window {view.window}, sizes stay: {error!r}")
            return keep

    def _begin_learning(self) -> None:
        """Start an update if the policy learns and one is due; one update at a time, beside the decisions."""
        busy = self._learning is not None and not self._learning.done()
        if not busy and isinstance(self._policy, Learner) and self._policy.update_due:
            self._learning = asyncio.create_task(self._learn(self._policy))

    async def _learn(self, policy: Learner) -> None:
        """One update, saved to disk. `begin_update` and `finish_update` run between decisions, the rest in a thread."""
        try:
            diagnostics = policy.finish_update(await asyncio.to_thread(policy.begin_update()))
            await asyncio.to_thread(policy.save, self._policy_file)
        except OSError as error:
            self._degraded("policy file", f"{self._policy_file} not written: {error}; a restart will not know it")
        except Exception as error:  # as in _ask
            self._degraded("policy", f"{self._policy.name}: update failed, the weights stay: {error!r}")
        else:
            if not diagnostics["accepted"]:
                self._degraded("policy", f"{self._policy.name}: update was not finite, the weights before it stay")
            self._journal.write("update", **diagnostics)

    def _degraded(self, what: str, detail: str) -> None:
        logger.error("%s: %s", what, detail, exc_info=sys.exc_info()[0] is not None)
        self._journal.write("degraded", what=what, detail=detail)
        if self._exporter is not None:
            self._exporter.degraded(what)

    def _publish(self, plan: Plan) -> None:
        self._plan = plan
        self._newest_version = max(self._newest_version, plan.version)
        changed, self._new_plan = self._new_plan, asyncio.Event()
        changed.set()

    def _heard(self, rank: int, incarnation: str, iteration: int = 0) -> None:
        if self._registry.heard(rank, incarnation, self._clock(), iteration):
            self._journal.write("lease_back", rank=rank)
