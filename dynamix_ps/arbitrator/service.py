"""The arbitrator: window records in, plans out.

    register -> a worker gets a lease, and its samples where it joins     registry.py, places.py
    begin    -> sizes by the speeds of an earlier run, if wanted          remembered.py, profile_file.py
    report   -> its record joins the others of the same window            windows.py
    observe  -> joins what workers and servers see of a connection        links.py
    step     -> window complete -> policy -> guard -> journal -> publish  decision.py, policy/, planner.py, journal.py
    plans    -> every worker's stream carries the new plan                publication.py
    lose     -> a worker is gone, and the next plan is of the others      places.py
    learn    -> a policy with enough experience learns                    learning.py

Training never waits for the arbitrator. Everything runs in one event loop, except writing to disk and learning, which
run in a thread: heartbeats continue during both, and decisions do not wait for learning.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamix_ps.arbitrator.decision import Decisions
from dynamix_ps.arbitrator.journal import Resumed
from dynamix_ps.arbitrator.learning import PolicyUpdates
from dynamix_ps.arbitrator.links import LinkReports
from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.arbitrator.publication import PlanPublication
from dynamix_ps.arbitrator.windows import MANY, Windows
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import LARGEST_VERSION, PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.policy.base import Policy
from dynamix_ps.rpc.plan_rules import wrong_sizes, wrong_version
from dynamix_ps.rpc.refusals import MalformedMessageError
from dynamix_ps.run_record.json_lines import Journal

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

logger = logging.getLogger("dynamix.arbitrator")

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
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._n_workers = n_workers = len(config.cluster.workers)
        self._lease_s = config.timeouts.lease_s
        self._largest = [config.bounds(rank)[1] for rank in range(n_workers)]
        self._accepted = tuple(config.accepted_bounds(rank) for rank in range(n_workers))
        plan = resumed.plan or Plan(0, config.initial_sizes())
        if len(plan.batch_sizes) != n_workers:
            raise EnvironmentNotReady(
                f"arbitrator: the journal's plan has {len(plan.batch_sizes)} sizes, but the cluster file has "
                f"{n_workers} workers; use the run folder of this cluster, or a new one"
            )
        self._places = WorkerPlaces(config, plan, resumed.retired)
        self._leases = self._places.leases
        self._publication = PlanPublication(plan, resumed.newest_version, journal)
        self._links = LinkReports(n_workers, n_servers or len(role_hosts(config.cluster).servers))
        self._windows = Windows(n_workers, closed=resumed.window)
        self._decisions = Decisions(
            config, policy, journal, resumed, self._places, self._publication, self._links, exporter
        )
        self._updates = PolicyUpdates(policy, policy_file, journal, self._decisions.degraded)
        self._started: dict[str, Any] = {"policy": policy.name, "workers": n_workers, "restarts": resumed.starts}
        self._refusals: Counter[str] = Counter()
        self._absent = 0  # workers, when leases were last checked
        self._told_overdue = False
        self._wake = asyncio.Event()
        self._peers: tuple[PeerStatus, ...] = ()  # as they were at _peers_s
        self._peers_s = -math.inf

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._publication.plan

    # Calls of workers and other roles

    def register(self, registration: Registration) -> Plan:
        """Take in a worker and return the newest plan. Idempotent.

        A worker that resumes from a checkpoint, or that outlived a journal, may hold a newer plan
        (`PlanPublication.hold`).

        Raises:
            MalformedMessageError, StaleIncarnationError: no such worker, it was replaced, or no plan can be like that.
        """
        rank, held = registration.rank, registration.plan
        problem = wrong_version(held.version, 0, LARGEST_VERSION) or wrong_sizes(held.batch_sizes, self._accepted)
        if problem:
            raise MalformedMessageError(f"plan.{problem}")
        if is_new := self._places.register(rank, registration.incarnation, self._clock()):
            self._journal.write(
                "registered",
                rank=rank,
                incarnation=registration.incarnation,
                host=registration.host,
                pid=registration.pid,
                plan_version=held.version,
            )
        self._heard(rank, registration.incarnation)
        self._publication.hold(rank, held)
        joins = is_new and rank in self._places.empty
        plan = self._places.taking_in(rank, self.plan) if joins else self._places.without_empty(self.plan)
        self._publication.resize(plan.batch_sizes)
        if self._decisions.remembered is not None:
            self._decisions.remembered.told(registration)
            self._wake.set()
        return self.plan

    def report(self, incarnation: str, record: WindowRecord) -> None:
        """Take in a window record. Idempotent; a late record changes nothing. Raises RefusalError."""
        self._heard(record.rank, incarnation)
        self._check(record)
        counts = self._windows.add(record, self._clock(), self._leases.live)
        if counts and self._windows.most_reported >= self._n_workers - self._absent:
            self._wake.set()  # not at every report: a step looks at all workers

    def _check(self, record: WindowRecord) -> None:
        """Raises MalformedMessageError if the record is of a plan that this worker cannot hold."""
        problem = wrong_version(record.plan_version, self._publication.newest_version_of(record.rank), 0)
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
            self._peers, self._peers_s = self._leases.peers(now_s), now_s
        return self._peers

    def leave(self, rank: int, incarnation: str) -> None:
        """Stop waiting for this worker, which leaves on notice, or whose training is over. Raises RefusalError."""
        if self._places.leave(rank, incarnation):
            self._journal.write("left", rank=rank)
            self._wake.set()

    def lose(self, rank: int) -> None:
        """The job goes on without this worker: no decision waits for it, and the next plan has nothing for it."""
        self._places.lose(rank)
        self._publication.resize(self._places.without_empty(self.plan).batch_sizes)
        self._wake.set()

    def depart(self, rank: int) -> None:
        """This worker has left the job, as the coordinator knows: its process ends."""
        self._places.depart(rank)
        self._wake.set()

    async def plans(self, rank: int, incarnation: str, newest_version: int) -> AsyncIterator[Plan]:
        """Every plan newer than `newest_version`, as soon as it exists; a slow reader skips. Raises RefusalError."""
        self._heard(rank, incarnation)
        async with aclosing(self._publication.stream(rank, newest_version)) as stream:
            async for plan in stream:
                yield plan

    def refused(self, text: str) -> None:
        """Count a refused call; journal each reason once."""
        if text not in self._refusals and len(self._refusals) < MAX_REFUSAL_TEXTS:
            logger.warning("refused: %s", text)
            self._journal.write("rejected", detail=text)
        self._refusals[text if len(self._refusals) < MAX_REFUSAL_TEXTS else "other"] += 1

    # What the service does on its own

    async def run(self, rest: Callable[[], None] = lambda: None) -> None:
        """Decide whenever a window is complete, until cancelled.

        Args:
            rest: work that holds the event loop up. It is called when a decision is out, and about once a second while
                no report of a window is there.
        """
        self._journal.write("started", **self._started)
        tick_s = min(1.0, self._lease_s / 4)
        try:
            while True:
                waking = asyncio.ensure_future(self._wake.wait())
                try:
                    done, _ = await asyncio.wait({waking}, timeout=tick_s)  # `wait_for` may miss that it is cancelled
                finally:
                    waking.cancel()
                if not done and not self._windows.most_reported:
                    rest()
                self._wake.clear()
                if await self.step():
                    rest()
        finally:
            await self._updates.cancel()

    async def step(self) -> bool:
        """Check leases and windows once; decide if a window is ready. Returns whether one was."""
        if (remembered := self._decisions.remembered) is not None and remembered.is_due:
            await remembered.begin(self._decisions.degraded)
        now_s = self._clock()
        for rank in self._leases.expire(now_s):
            logger.warning("worker %d is silent for more than %g s", rank, self._lease_s)
            self._journal.write("lease_lost", rank=rank)
        if not self._leases.live():
            return False
        absent = self._leases.absent(now_s)
        self._absent = len(absent)
        closed = self._windows.ready(absent, self._lease_s, now_s)
        if closed is not None:
            await self._decisions.decide(closed, now_s)
            self._updates.begin()
        elif not self._told_overdue and (missing := self._windows.overdue(absent, self._lease_s, now_s)):
            self._told_overdue = True
            text = f"none for {MANY} windows, so batch sizes stay as they are: {missing}"
            self._decisions.degraded("decisions", text)
        return closed is not None

    async def settled(self) -> None:
        """Wait until an update of the policy that is under way is complete."""
        await self._updates.settled()

    def close(self) -> None:
        """Journal the end, and keep the measured speeds if wanted. The caller closes the journal."""
        if self._decisions.remembered is not None:
            self._decisions.remembered.save()
        self._journal.write("stopped", decisions=self._decisions.count, refused=sum(self._refusals.values()))

    def _heard(self, rank: int, incarnation: str, iteration: int = 0) -> None:
        if self._leases.heard(rank, incarnation, self._clock(), iteration):
            self._journal.write("lease_back", rank=rank)
