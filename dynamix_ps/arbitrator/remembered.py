"""A job that remembers: it begins with sizes by the speeds that an earlier run has measured.

    told     a worker registers and says what it computes, and where
    begin    all have: their profile gives the first plan, of the same global batch       policy/model/profile.py
    answer   the first second of training contradicts the profile: back to the first sizes
    save     what this run has measured is for the next one                               profile_file.py

Until the profile is judged, the policy sees no window. If it is dropped, the policy begins as without one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dynamix_ps.arbitrator.profile_file import profile_file, read_profile, write_profile
from dynamix_ps.arbitrator.publication import PlanPublication
from dynamix_ps.config.policies import entry_of
from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan, Registration
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.evidence.measurements import ENOUGH_S, JoinedWindows
from dynamix_ps.policy.model.profile import Profile, ProfileMeter, first_sizes, lateness
from dynamix_ps.run_record.json_lines import Journal

logger = logging.getLogger("dynamix.arbitrator")

OFF = 1.25  # a worker that computes so many times as long as the profile says, compared with the others


class RememberedSpeeds:
    """Of one run.

    Args:
        fresh: no earlier arbitrator of this run has decided anything.
    """

    def __init__(self, config: Config, publication: PlanPublication, journal: Journal, fresh: bool) -> None:
        self._config = config
        self._publication = publication
        self._journal = journal
        self._ranks = range(config.first_workers)  # those that come later stand behind them
        self._workers: dict[int, tuple[str, str]] = {}  # host and work, by rank
        self._joining = JoinedWindows()
        self._meter = ProfileMeter(len(config.cluster.workers))
        self._profile: Profile | None = None  # until it is judged
        self._planned: tuple[int, ...] = ()  # by the profile
        self._may_begin = fresh

    def told(self, registration: Registration) -> None:
        """A worker registers."""
        rank, worker = registration.rank, (registration.host, registration.work)
        if self._workers.get(rank, worker) != worker:  # another machine, or another model
            self._meter = ProfileMeter(len(self._config.cluster.workers))
        self._workers[rank] = worker

    @property
    def is_due(self) -> bool:
        """Whether it is time to `begin`."""
        return self._may_begin and all(rank in self._workers for rank in self._ranks)

    async def begin(self, degraded: Callable[[str, str], None]) -> None:
        """Publish the first plan by the profile of this job, if there is one and training begins with the first sizes.

        `degraded` tells people what does not work.
        """
        self._may_begin = False
        first, file = Plan(0, self._config.initial_sizes()), self._file
        if file is None:
            return
        try:
            profile = await asyncio.to_thread(read_profile, file, len(self._ranks))
        except (OSError, ValueError) as error:
            degraded("remembered speeds", f"{file} is not used: {error}; it is replaced at the end of the run")
            return
        if profile is None or self._publication.plan != first:
            return
        sizes = self._sizes_by(profile, first.batch_sizes)
        if sizes != first.batch_sizes:
            self._profile, self._planned = profile, sizes
            self._publication.resize(sizes)
            self._journal.write("remembered", batch_sizes=sizes)
            logger.info("sizes %s by the speeds of an earlier run", "/".join(map(str, sizes)))

    def _sizes_by(self, profile: Profile, sizes: tuple[int, ...]) -> tuple[int, ...]:
        config, n_first = self._config, len(self._ranks)
        measured = config.memory == "auto"
        limits = (profile.at_once[rank] if measured else config.at_once(rank) for rank in self._ranks)
        bounds = tuple(config.bounds_at_once(rank, limit or math.nan) for rank, limit in enumerate(limits))
        found = first_sizes(profile, sizes[:n_first], bounds, entry_of(config.policy.name).links)
        return found + sizes[n_first:]

    def answer(self, view: View, degraded: Callable[[str, str], None]) -> Decision | None:
        """The answer to this window in place of the policy's; None: the policy decides."""
        if not view.clean:
            return None
        self._joining.add(view)
        if view.plan.batch_sizes != self._planned:  # somebody came or went
            self._profile = None
        enough = self._joining.duration_s >= ENOUGH_S
        if enough:
            sizes, times_s = self._meter.observe(self._joining.take())
        if self._profile is None:
            return None
        if not enough:
            return Decision(view.plan.batch_sizes)
        profile, self._profile = self._profile, None
        late = np.nan_to_num(lateness(profile, sizes[: len(self._ranks)], times_s[: len(self._ranks)]))
        if (late <= OFF).all():
            return None
        who = int(late.argmax())
        found = f"worker {who} computes {late[who]:.2f} times as long as in the earlier run, compared with the others"
        degraded("remembered speeds", f"dropped: {found}; sizes are the first ones again")
        return Decision(self._config.initial_sizes())

    def save(self) -> None:
        """Keep what this run has measured. Never raises; a failure is logged."""
        file, profile = self._file, self._meter.profile(self._ranks)
        if file is None or profile is None:
            return
        try:
            write_profile(file, profile)
        except (OSError, ValueError) as error:  # ValueError: a number that JSON does not have
            logger.warning("the speeds of this run are not kept: %s", error)

    @property
    def _file(self) -> Path | None:
        """Of the workers as they are now; None while one is missing, or cannot tell what it computes."""
        workers = {rank: self._workers[rank] for rank in self._ranks if self._workers.get(rank, ("", ""))[1]}
        return profile_file(self._config, workers) if len(workers) == len(self._ranks) else None
