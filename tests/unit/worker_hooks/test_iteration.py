"""The iteration in flight: what a sum is of, and which steps may come next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.iteration.in_flight import IterationInFlight
from worker_hooks.loading.batches import Batch
from worker_hooks.sampling.sampler import Cursor, Step

VIEW = GlobalView(8, 1.0, math.nan, None, (2, 6), (math.nan,) * 2, (0.0,) * 2, (), (0, 0), ((0.0,) * 2, (0.0,) * 2))


def batch(samples: int = 2, others: int = 6) -> Batch:
    total = samples + others
    step = Step(Cursor(), (samples, others), Cursor(0, total), (10 * samples, 10 * others))
    return Batch(0, Plan(0, (samples, others)), step, samples, 10 * samples, data=None)


def at(phase: str) -> IterationInFlight:
    now = IterationInFlight()
    steps = ("idle", "begun", "sent", "summed", "stepped", "ended")
    for step in steps[1 : steps.index(phase) + 1]:
        if step == "begun":
            now.begin(batch())
        elif step == "sent":
            now.sent()
        elif step == "summed":
            now.summed(VIEW, 2.0, VIEW.worker_samples)
        elif step == "stepped":
            now.stepped(0)
        else:
            now.end()
    return now


@pytest.mark.parametrize("phase", ["idle", "ended"])
def test_backward_needs_a_batch(phase: str) -> None:
    with pytest.raises(TrainingError, match=r"run\.backward\(\) belongs inside"):
        at(phase).check_backward()


@pytest.mark.parametrize("phase", ["idle", "begun", "sent", "ended"])
def test_a_step_needs_a_sum(phase: str) -> None:
    with pytest.raises(TrainingError, match=r"optimizer\.step\(\) without run\.backward"):
        at(phase).check_step(0)
    with pytest.raises(TrainingError, match=r"without run\.backward"):
        at(phase).check_summed()


def test_every_optimizer_steps_once_per_sum() -> None:
    now = at("stepped")
    now.check_step(1)
    with pytest.raises(TrainingError, match="a second time for one"):
        now.check_step(0)
    now.check_backward()  # a second sum of the same batch, for another optimizer
    now.summed(VIEW, 2.0, VIEW.worker_samples)
    now.check_step(0)


def test_a_sum_is_of_all_batches_since_the_one_before() -> None:
    now = IterationInFlight()
    now.begin(batch(2, 6))
    now.add_loss(1.0)
    now.begin(batch(3, 1))
    now.add_loss(2.0)
    assert (now.batches_due, now.samples_due, now.sizes_due, now.spent_due) == (2, 5, (5, 7), (50, 70))
    now.close_losses()
    assert (now.loss, now.weighted_loss) == (3.0, 1.0 * 2 / 8 + 2.0 * 3 / 4)
    now.divide(range(1), [0.5])
    now.summed(VIEW, 2.0, VIEW.worker_samples)
    assert (now.parts[0].samples, now.parts[0].size, now.spent) == (5, 50, (50, 70))
    assert now.sum is not None
    assert now.sum.batches == 2
    now.begin(batch(2, 6))
    assert (now.batches_due, now.sizes_due) == (1, (2, 6))


def test_a_sum_begins_with_the_first_batch_that_is_in_no_sum_yet() -> None:
    now = at("stepped")
    for number in (4, 5, 6):
        now.begin(replace(batch(), iteration=number))
    assert now.first_due == 4
    now.sent()
    now.summed(VIEW, 2.0, VIEW.worker_samples)
    assert now.first_due == 6, "another sum of the batch at hand"


def test_a_lost_worker_has_no_samples_in_the_sum_of_its_batches() -> None:
    now = IterationInFlight()
    now.begin(batch(2, 6))
    now.begin(batch(3, 1))
    now.missing = [1]
    assert (now.sizes_due, now.spent_due) == ((5, 0), (50, 0))
    now.summed(VIEW, 2.0, VIEW.worker_samples)
    now.begin(batch(2, 6))
    assert now.sizes_due == (2, 6), "later batches have samples of whoever is there"


def test_workers_of_one_process_share_its_loss_by_their_samples() -> None:
    now = IterationInFlight()
    step = Step(Cursor(), (2, 6, 0), Cursor(0, 8), (20, 20, 0))
    now.begin(Batch(0, Plan(0, (2, 6, 0)), step, 8, 40, data=None))
    now.add_loss(1.0)
    now.close_losses()
    now.correct = 4.0
    now.divide(range(3), [0.1, 0.2, math.nan])
    assert [part.samples for part in now.parts] == [2, 6, 0]
    assert [part.size for part in now.parts] == [20, 20, 0]
    assert [part.weighted_loss for part in now.parts] == [0.25, 0.75, 0.0]
    assert [part.correct for part in now.parts] == [1.0, 3.0, 0.0]
    now.units = 30.0  # of tokens only the sum is known: the plan's sizes stand for the parts
    now.divide(range(3), [0.1, 0.2, math.nan])
    assert [part.units for part in now.parts] == [15.0, 15.0, 0.0]


def test_a_batch_that_the_script_leaves_out_is_in_no_sum() -> None:
    now = IterationInFlight()
    now.begin(batch(2, 6))
    now.leave_out()
    now.begin(batch(3, 1))
    assert now.sizes_due == (3, 1)


def test_a_worker_without_samples_has_no_weight_and_no_loss() -> None:
    now = IterationInFlight()
    now.begin(batch(0, 4))
    now.add_loss(math.nan)
    now.close_losses()
    assert (now.weight, now.loss, now.weighted_loss) == (0.0, 0.0, 0.0)
