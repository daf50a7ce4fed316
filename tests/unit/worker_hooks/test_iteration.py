"""The iteration in flight: it refuses every wrong order of steps and says what to call."""

from __future__ import annotations

import math

import pytest

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.batches import Batch
from worker_hooks.iteration import IterationInFlight
from worker_hooks.sampler import Cursor, Step
from worker_hooks.trailer import GlobalView

BATCH = Batch(0, Plan(0, (4,)), Step(Cursor(), (4,), Cursor(0, 4)), 4, data=None)
VIEW = GlobalView(4, 1.0, math.nan, None, (4,), (math.nan,), (0.0,), ())


def at(phase: str) -> IterationInFlight:
    now = IterationInFlight()
    steps = ("idle", "begun", "sent", "summed", "stepped", "ended")
    for step in steps[1 : steps.index(phase) + 1]:
        if step == "begun":
            now.begin(BATCH)
        elif step == "sent":
            now.sent()
        elif step == "summed":
            now.summed(VIEW, 2.0)
        elif step == "stepped":
            now.stepped()
        else:
            now.end()
    return now


@pytest.mark.parametrize("phase", ["idle", "begun", "sent", "summed", "stepped", "ended"])
def test_only_the_next_step_is_allowed(phase: str) -> None:
    checks = {
        "begun": ("check_backward", r"run\.backward\(\) belongs inside .*, once per batch"),
        "summed": ("check_step", r"optimizer\.step\(\) (without run\.backward|a second time)"),
        "stepped": ("check_stepped", r"the loop went on without optimizer\.step\(\)"),
    }
    for allowed, (check, message) in checks.items():
        if phase == allowed:
            getattr(at(phase), check)()
        else:
            with pytest.raises(TrainingError, match=message):
                getattr(at(phase), check)()
    if phase in ("idle", "begun", "ended"):
        with pytest.raises(TrainingError, match=r"without run\.backward"):
            at(phase).check_sent()
    else:
        at(phase).check_sent()
    assert at(phase).is_incomplete == (phase in ("begun", "sent", "summed"))


@pytest.mark.parametrize("phase", ["sent", "summed"])
def test_gradients_under_way_are_not_left_behind(phase: str) -> None:
    with pytest.raises(TrainingError, match=r"without optimizer\.step"):
        at(phase).begin(BATCH)


def test_the_sum_of_the_iteration_before_is_known_in_the_next_one() -> None:
    now = at("ended")
    now.begin(BATCH)
    assert now.sum is None
    assert now.sum_before is not None
    assert (now.sum_before.view, now.sum_before.squared_norm) == (VIEW, 2.0)
    now.begin(BATCH)  # the script left the loop before backward
    assert now.sum_before is None
