"""The decision on a closed window: window -> view -> policy -> guard -> journal -> new plan, or the present one."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import sys
import time
from typing import TYPE_CHECKING

from dynamix_ps.arbitrator.diagnosis import labelled
from dynamix_ps.arbitrator.journal import Resumed
from dynamix_ps.arbitrator.links import LinkReports
from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.arbitrator.planner import guard, next_plan
from dynamix_ps.arbitrator.publication import PlanPublication
from dynamix_ps.arbitrator.remembered import RememberedSpeeds
from dynamix_ps.arbitrator.windows import ClosedWindow
from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, Policy, View, ask, largest_total, reference_batch
from dynamix_ps.run_record.json_lines import Journal

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

logger = logging.getLogger("dynamix.arbitrator")


class Decisions:
    """Decides on closed windows, one after the other.

    Attributes:
        count: how many were made in this run, by earlier arbitrators too.
        remembered: speeds of an earlier run; None: the job does not remember.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        journal: Journal,
        resumed: Resumed,
        places: WorkerPlaces,
        publication: PlanPublication,
        links: LinkReports,
        exporter: Exporter | None = None,
    ) -> None:
        """`exporter`: gets every closed window."""
        self._config = config
        self._policy = policy
        self._journal = journal
        self._places = places
        self._publication = publication
        self._links = links
        self._exporter = exporter
        self.remembered: RememberedSpeeds | None = None
        if config.policy.remember and config.mode == "adapt":
            fresh = resumed.plan is None and not resumed.decisions
            self.remembered = RememberedSpeeds(config, publication, journal, fresh)
        self.count = resumed.decisions
        self._holding = resumed.starts > 0  # after a restart, sizes stay for one complete window
        self._first_sizes = config.initial_sizes()
        self._is_ring = config.data_plane.is_ring
        n_workers = len(config.cluster.workers)
        self._at_once = [config.at_once(rank) or math.nan for rank in range(n_workers)]  # NaN: no limit is known
        self._bounds_at_once = self._within_memory()  # for policies

    async def decide(self, closed: ClosedWindow, now_s: float) -> None:
        """Publish a new plan, or decide to keep the present one. Both count as decisions.

        Workers may come and go while the decision is written to disk. Then there is a newer plan, and the one of the
        decision is not published.
        """
        began_s = time.perf_counter()
        publication = self._publication
        if self._places.vacate(closed.records):
            publication.resize(self._places.without_empty(publication.plan).batch_sizes)
        there = (None if rank in self._places.empty else record for rank, record in enumerate(closed.records))
        closed = dataclasses.replace(closed, records=tuple(there))
        view = self._view(closed, now_s)
        decision = self._ask(view, closed.timed_out)
        guarded = guard(decision.batch_sizes, view.plan.batch_sizes, view.bounds, view.largest_total)
        plan = next_plan(guarded.batch_sizes, view.plan, publication.newest_version)
        self.count += 1
        kind = "kept" if plan is None else ("plan" if self._config.mode == "adapt" else "observed")
        version = plan.version if plan is not None and kind == "plan" else view.plan.version
        publication.newest_version = max(publication.newest_version, version)
        line = {
            "version": version,
            "batch_sizes": guarded.batch_sizes,
            "window": closed.window,
            "reported": [record.rank for record in view.reported],  # later records were not known to this decision
            "timed_out": closed.timed_out,
            "proposed": decision.batch_sizes,
            "corrected": guarded.corrected,
            "reward": decision.reward,
            "fallback": decision.fallback,
            "decision_ms": 1000 * (decision_s := time.perf_counter() - began_s),
        }
        await asyncio.to_thread(self._journal.write, kind, sync=True, **line)
        if plan is not None and kind == "plan" and plan.version > publication.plan.version:
            publication.publish(plan)
        view = dataclasses.replace(view, links=labelled(closed.records, view.links))  # for people, no policy reads it
        if decision.note:
            self._journal.write("fallback" if decision.fallback else "note", window=view.window, detail=decision.note)
        if view.links or view.servers:
            await asyncio.to_thread(
                self._journal.write, "links", window=view.window, links=view.links, servers=view.servers
            )
        self._export(view, decision, decision_s)

    def degraded(self, what: str, detail: str) -> None:
        """Tell people that a part does not work, and that training goes on without it."""
        logger.error("%s: %s", what, detail, exc_info=sys.exc_info()[0] is not None)
        self._journal.write("degraded", what=what, detail=detail)
        if self._exporter is not None:
            self._exporter.degraded(what)

    def _within_memory(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._config.bounds_at_once(rank, at_once) for rank, at_once in enumerate(self._at_once))

    def _view(self, closed: ClosedWindow, now_s: float) -> View:
        links, servers = self._links.close(now_s)
        for record in closed.records:
            known = math.nan if record is None else record.at_once
            if record is not None and not math.isnan(known) and known != self._at_once[record.rank]:
                self._at_once[record.rank] = known
                self._bounds_at_once = self._within_memory()
        return View(
            closed.window,
            self._publication.plan,
            self._places.within(self._bounds_at_once),
            closed.records,
            links,
            servers,
            self._config.lr_rule,
            reference_batch=reference_batch(closed.records, self._first_sizes),
            largest_total=largest_total(closed.records),
            ring=self._is_ring,
        )

    def _ask(self, view: View, timed_out: bool) -> Decision:
        """The policy's answer; the present plan right after a restart, the present sizes if the policy fails.

        While remembered speeds are being judged, the sizes that follow from that.
        """
        keep = Decision(view.plan.batch_sizes)
        if self._holding:
            self._holding = timed_out
            return keep
        try:
            answer = None if self.remembered is None else self.remembered.answer(view, self.degraded)
            return answer or ask(self._policy, view)
        except Exception as error:  # any fault of a policy: sizes stay and training goes on
            self.degraded("policy", f"{self._policy.name} failed in window {view.window}, sizes stay: {error!r}")
            return keep

    def _export(self, view: View, decision: Decision, decision_s: float) -> None:
        """Give the window to the exporter. An exporter that fails is not used again."""
        if self._exporter is None:
            return
        try:
            self._exporter.observe(view, decision, decision_s)
        except Exception as error:  # training does not depend on the exporter
            self._exporter = None
            self.degraded("prometheus", f"the endpoint shows no more windows: {error!r}")
