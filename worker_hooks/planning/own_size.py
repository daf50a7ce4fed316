"""Sizes without an arbitrator: every worker chooses its own, and all learn it from the sums. Pure.

A window ends in the same iteration on all workers. Then four sums in a row do what is to be done, and training goes on
beside it:

    WAITING      the record of the window is completed meanwhile (observe/reporter.py)
    LAID         the traces of all workers are in this sum
    LATE         and now with how late each worker is
    PROPOSED     the next size of every worker is in this sum

In the last of them everybody reads all sizes as whole numbers. If every worker in the sum has proposed one, they are
the next plan, which takes effect on all workers at once, like one of an arbitrator. Otherwise the sizes stay, and the
next window decides: so a worker that has paused or stalled stops nobody, nor does one that enters in between. What each
actor computes (policy/stigmergy) need not be the same number on two machines; what they read in the sum is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.config.schema import Stigmergy, bounds_within
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.stigmergy.actor import Actor
from dynamix_ps.policy.stigmergy.settings import StigmergySettings
from dynamix_ps.policy.stigmergy.traces import TRACES
from dynamix_ps.policy.window_arrays import arrays_of
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.shares import within_total

# numbers of each worker in a sum: its traces, its largest size, and one above the size that it proposes
TOLD = len(TRACES) + 2
_LARGEST, _PROPOSED = len(TRACES), len(TRACES) + 1
_COMPLETED = ("cpu_ratio", "cpu_cores", "throttled", "push_busy")  # what kernel and machine add to a record


class SumPurpose(IntEnum):
    """What the coming sum is for."""

    NONE = 0
    WAITING = 1
    LAID = 2
    LATE = 3
    PROPOSED = 4


class OwnSize:
    """The sizes of this process's workers in one training.

    Args:
        here: slots of its workers.
        bounds: (smallest, largest) size of every worker.
        micro_batches: whether a worker may have more samples than it computes at once.
        reference_batch: the global batch that the learning rate is for.
        data_size: of a pass over the data, in the unit of the sizes; NaN: that is not known.
        settings: of the actor; None: their defaults.

    Attributes:
        telling: what rides in the next sum, (TOLD, slots).
    """

    def __init__(
        self,
        here: range,
        bounds: Sequence[tuple[int, int]],
        micro_batches: bool,
        lr_rule: str,
        reference_batch: int,
        seed: int,
        ring: bool,
        data_size: float = math.nan,
        settings: Stigmergy | None = None,
    ) -> None:
        count = len(bounds)
        self._here, self._micro_batches = here, micro_batches
        self._smallest, self._largest = zip(*bounds, strict=True)
        self.telling = np.zeros((TOLD, count))
        self.telling[_LARGEST, here] = self._largest[here.start : here.stop]
        self._told = self.telling  # in the last sum
        self._bounds, self._data_size = bounds, data_size
        self._lr_rule, self._reference_batch, self._ring = lr_rule, reference_batch, ring
        self._actor = Actor(count, here, StigmergySettings.of(settings) if settings else None, seed)
        self._step = SumPurpose.NONE
        self._view: View | None = None
        self._line: Line = {}  # the newest completed record

    def hear(self, line: Line) -> None:
        """Take in a line of the worker's records, in the thread of the reporter."""
        if line["kind"] == "window":
            self._line = line

    def window_over(self, records: Sequence[WindowRecord], plan: Plan) -> None:
        """A window has ended; `plan` is the newest one. A window that ends while sizes are being chosen is left out."""
        if self._step is not SumPurpose.NONE:
            return
        of_all: list[WindowRecord | None] = [None] * len(self._largest)
        for record in records:
            of_all[record.rank] = record
            self.telling[_LARGEST, record.rank] = self._largest_now(record)
        largest = np.where(self._told[_LARGEST], self._told[_LARGEST], self._largest).astype(np.int64)
        largest[self._here] = self.telling[_LARGEST, self._here]
        view = View(
            window=records[0].window,
            plan=plan,
            bounds=tuple(zip(self._smallest, largest.tolist(), strict=True)),
            records=tuple(of_all),
            lr_rule=self._lr_rule,
            reference_batch=self._reference_batch,
            ring=self._ring,
        )
        if view.clean:
            self._view, self._step = view, SumPurpose.WAITING

    def summed(self, told: NDArray[np.floating[Any]], present: Sequence[int]) -> tuple[int, ...] | None:
        """A sum of gradients is complete. Returns the next sizes of all workers, if they have chosen them in it.

        Args:
            told: what all workers have told in it, (TOLD, slots).
            present: slots of the workers in it.
        """
        self._told = told
        if self._step is not SumPurpose.NONE:
            self._go_on(told)
        return self._agreed(told[_PROPOSED], present)

    def _go_on(self, told: NDArray[np.floating[Any]]) -> None:
        """Do what follows from the sum, and tell more in the next one."""
        assert self._view is not None
        step, self._step = self._step, SumPurpose((self._step + 1) % len(SumPurpose))
        if step is SumPurpose.PROPOSED:
            self.telling[_PROPOSED] = 0
            return
        if step is SumPurpose.WAITING:
            self._actor.observe(arrays_of(self._completed(self._view)))
        elif step is SumPurpose.LAID:
            self._actor.read(told[: len(TRACES)])
        else:
            sizes = self._actor.propose(told[: len(TRACES)], self._view.window)
            self.telling[_PROPOSED, self._here] = 1 + sizes[self._here]
        self.telling[: len(TRACES)] = self._actor.traces

    def _agreed(self, proposed: NDArray[np.floating[Any]], present: Sequence[int]) -> tuple[int, ...] | None:
        """All sizes, if every worker in the sum has proposed its own; one that is not there has none.

        The sum alone says so: a worker that only follows the others has proposed nothing, and changes sizes with them.
        Who proposes does not know the others' sizes. All together they are no more than a pass over the data.
        """
        values = [round(value) for value in proposed.tolist()]
        sizes = tuple(max(value - 1, 0) for value in values)
        whole = all(values[slot] > 0 for slot in present) and any(sizes)
        return within_total(sizes, self._bounds, self._data_size) if whole else None

    def _largest_now(self, record: WindowRecord) -> int:
        """The largest size of a worker: what it computes at once, unless it divides its batches."""
        bounds = self._smallest[record.rank], self._largest[record.rank]
        return bounds[1] if self._micro_batches else bounds_within(bounds, record.at_once)[1]

    def _completed(self, view: View) -> View:
        """The same with what kernel and machine have measured, if that has come by now."""
        line = self._line
        records = tuple(
            replace(record, **{name: line[name] for name in _COMPLETED})
            if record and (line.get("rank"), line.get("window")) == (record.rank, record.window)
            else record
            for record in view.records
        )
        return replace(view, records=records)
