"""Sizes without an arbitrator: all workers learn the same next sizes from the same sum, or keep theirs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dynamix_ps.config.schema import Stigmergy
from dynamix_ps.messages import Plan, WindowRecord, fields_of
from tests.policy_cluster import SmallCluster
from tests.unit.worker_hooks.local_run import make_run
from worker_hooks.planning.own_size import TOLD, OwnSize
from worker_hooks.planning.plan_switch import PlanSwitch

SUMS = 4  # from the end of a window to the next sizes
WORKERS = 3


class Job:
    """Workers in lock-step: the sums between them are those of float32."""

    def __init__(
        self,
        *speeds: float,
        micro_batches: bool = False,
        settings: Stigmergy | None = None,
        data_size: float = math.nan,
        **changes: Any,
    ) -> None:
        self._micro_batches, self._settings, self._data_size = micro_batches, settings, data_size
        self.cluster = SmallCluster(list(speeds or (4000, 2000, 1000)), noise_scale=1000, **changes)
        self.workers = [self.worker(rank) for rank in range(WORKERS)]
        self.present = list(range(WORKERS))

    def worker(self, rank: int) -> OwnSize:
        bounds = ((self.cluster.low, self.cluster.high),) * WORKERS
        here = range(rank, rank + 1)
        return OwnSize(
            here,
            bounds,
            self._micro_batches,
            "adascale",
            192,
            seed=3,
            ring=False,
            data_size=self._data_size,
            settings=self._settings,
        )

    def window(self, **changes: dict[int, Any]) -> list[WindowRecord]:
        """The next window is over. `changes`: to fields of records, by rank."""
        view = self.cluster.view()
        records = [
            dataclasses.replace(
                one, **{name: values[one.rank] for name, values in changes.items() if one.rank in values}
            )
            for one in view.reported
        ]
        for rank in self.present:
            self.workers[rank].window_over([records[rank]], self.cluster.plan)
        return records

    def sum(self) -> list[tuple[int, ...] | None]:
        """What each worker knows after the next sum."""
        rows = [self.workers[rank].telling.astype(np.float32) for rank in self.present]
        total = np.sum(rows, axis=0)
        return [self.workers[rank].summed(total, self.present) for rank in self.present]

    def decide(self) -> tuple[int, ...]:
        """The sizes after one window, the same on all workers."""
        self.window()
        *before, after = [self.sum() for _ in range(SUMS)]
        assert before == [[None] * len(self.present)] * (SUMS - 1)
        assert after == [after[0]] * len(self.present)
        assert after[0] is not None
        self.cluster.plan = Plan(self.cluster.plan.version + 1, after[0])
        return after[0]


def test_all_sizes_together_are_no_more_than_a_pass_over_the_data() -> None:
    free, bound = Job(), Job(data_size=160)
    wanted, found = free.decide(), bound.decide()
    assert sum(wanted) > sum(found) == 160
    assert [size / 160 for size in found] == pytest.approx([size / sum(wanted) for size in wanted], abs=0.01)


def test_all_workers_come_to_the_same_sizes_in_the_same_sum() -> None:
    job = Job()
    for _ in range(12):
        sizes = job.decide()
    assert sizes[0] > 1.5 * sizes[1] > 2 * sizes[2]
    assert all(job.cluster.low <= size <= job.cluster.high for size in sizes)


def test_without_a_deposit_of_alarm_sizes_move_by_three_percent_at_most() -> None:
    job = Job(settings=Stigmergy(alarm=0.0))
    before = job.cluster.plan.batch_sizes
    for _ in range(5):
        after = job.decide()
        assert all(abs(new - old) <= max(0.03 * old, 1) for new, old in zip(after, before, strict=True))
        before = after


def test_between_windows_nobody_proposes_anything() -> None:
    job = Job()
    job.decide()
    assert [worker.telling[-1].tolist() for worker in job.workers] == [[0] * WORKERS] * WORKERS
    assert [job.sum() for _ in range(5)] == [[None] * WORKERS] * 5


@pytest.mark.parametrize("changes", [{"flagged": {1: True}}, {"plan_version": {1: 7}}])
def test_if_the_window_of_one_worker_does_not_count_the_sizes_stay(changes: dict[str, dict[int, Any]]) -> None:
    job = Job()
    job.window(**changes)
    assert [job.sum() for _ in range(SUMS + 1)] == [[None] * WORKERS] * (SUMS + 1)
    job.decide()  # the next window decides


def test_a_worker_tells_of_itself_alone_and_ends_within_its_bounds() -> None:
    job = Job(low=60, high=80)
    job.window()
    for _ in range(SUMS - 1):
        job.sum()
    for rank, worker in enumerate(job.workers):
        others = np.delete(worker.telling, rank, axis=1)
        assert not others.any()
        assert 61 <= worker.telling[-1, rank] <= 81


def test_a_window_that_ends_while_sizes_are_chosen_is_left_out() -> None:
    job, same = Job(), Job()
    job.window()
    same.window()
    job.sum()
    same.sum()
    job.workers[0].window_over([], Plan(9, (1, 1, 1)))  # it would fail on what is not there
    assert [job.sum() for _ in range(SUMS - 1)] == [same.sum() for _ in range(SUMS - 1)]


@pytest.mark.parametrize("micro_batches", [False, True])
def test_a_worker_takes_no_more_than_it_computes_at_once_unless_it_divides(micro_batches: bool) -> None:
    job = Job(micro_batches=micro_batches)
    largest = max(_sizes_with(job, 70.0)[0] for _ in range(10))
    assert (largest > 70) is micro_batches


def _sizes_with(job: Job, at_once: float) -> tuple[int, ...]:
    """The sizes after one window, in which worker 0 computes so many samples at once."""
    job.window(at_once={0: at_once})
    (sizes, *_) = [job.sum() for _ in range(SUMS)][-1]
    assert sizes is not None
    job.cluster.plan = Plan(job.cluster.plan.version + 1, sizes)
    return sizes


def test_the_others_count_with_what_one_of_them_computes_at_once() -> None:
    """So they do not leave samples to it that it cannot take."""
    job, free = Job(), Job()
    for _ in range(25):
        sizes, at_will = _sizes_with(job, 70.0), free.decide()
    assert sizes[0] <= 70 < at_will[0]
    assert sizes[1] > at_will[1]


def test_what_kernel_and_machine_add_to_the_record_counts_if_it_comes_in_time() -> None:
    job, late = Job(), Job()
    record = job.window()[1]
    late.window()
    line = {"kind": "window", **fields_of(dataclasses.replace(record, push_busy=0.5))}
    job.workers[1].hear(line)
    late.workers[1].hear({**line, "window": record.window + 1})
    job.workers[1].hear({"kind": "paused"})
    job.sum()
    late.sum()
    congestion = 3
    assert job.workers[1].telling[congestion, 1] > 0 == late.workers[1].telling[congestion, 1]


def test_the_others_choose_without_a_worker_that_is_lost_meanwhile() -> None:
    job = Job()
    job.decide()
    job.window()
    job.sum()
    job.present = [0, 2]
    *_, after = [job.sum() for _ in range(SUMS - 1)]
    assert after == [after[0]] * 2 and after[0] is not None
    assert after[0][1] == 0 and min(after[0][0], after[0][2]) > 0


def test_who_follows_changes_sizes_with_the_others_and_has_a_say_from_its_first_window_on() -> None:
    job = Job()
    job.present = [0, 2]
    job.cluster.plan = Plan(0, (96, 0, 96))
    job.window()
    follower = job.worker(1)
    for _ in range(SUMS):
        total = np.sum([job.workers[rank].telling.astype(np.float32) for rank in job.present], axis=0)
        found = [job.workers[rank].summed(total, job.present) for rank in job.present]
        assert follower.summed(total, job.present) == found[0] == found[1]
    assert found[0] is not None
    job.cluster.plan = Plan(1, found[0])
    job.window()
    job.sum()
    job.workers[1], job.present = follower, [0, 1, 2]  # it enters while the others choose
    assert [job.sum() for _ in range(SUMS - 1)] == [[None] * WORKERS] * (SUMS - 1)
    job.cluster.plan = Plan(2, (64, 64, 64))
    assert min(job.decide()) > 0


def test_sizes_that_are_chosen_take_effect_like_a_plan() -> None:
    switch = PlanSwitch(Plan(4, (8, 8)), lag=1)
    switch.choose(10, (12, 4))
    assert [switch.plan_at(iteration).batch_sizes for iteration in (10, 11, 12, 13)] == [(8, 8)] * 2 + [(12, 4)] * 2
    assert switch.plan_at(12) == Plan(5, (12, 4))
    assert switch.vote(None) == switch.newest_scheduled
    switch.decide(11, 5)  # all hold it already
    assert switch.newest_scheduled.version == 5
    switch.choose(20, (12, 4))
    assert switch.newest_scheduled.version == 5, "sizes that stay are no new plan"


def test_who_has_chosen_once_since_it_entered_may_choose_nothing() -> None:
    switch = PlanSwitch(Plan(4, (8, 8, 0)), bounds=((0, 20),) * 3, later=[2])
    switch.take_in(9, [2])
    assert switch.newest_scheduled.batch_sizes[2] > 0
    switch.choose(10, (8, 4, 0))
    assert switch.newest_scheduled.batch_sizes[2] > 0, "the others have chosen before they knew of it"
    for sizes in ((8, 4, 4), (8, 8, 0)):
        switch.choose(20, sizes)
        assert switch.newest_scheduled.batch_sizes == sizes


def test_it_tells_two_numbers_more_than_there_are_traces() -> None:
    assert Job().workers[0].telling.shape == (TOLD, WORKERS) == (8, 3)


def test_a_training_chooses_sizes_by_the_numbers_of_its_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Stigmergy] = []

    class Recorded(OwnSize):
        def __init__(self, *args: Any, settings: Stigmergy, **named: Any) -> None:
            given.append(settings)
            super().__init__(*args, settings=settings, **named)

    monkeypatch.setattr("worker_hooks.planning.own_size.OwnSize", Recorded)
    make_run(mode="adapt", bounds=((4, 16),), own_sizes=Stigmergy(evaporation=0.25, alarm=1.5))
    assert given == [Stigmergy(evaporation=0.25, alarm=1.5)]
