"""The simulator's workloads are like the real trainings that they were fitted to, and can be fitted again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.studies.rate_surrogate import (
    MEASURED,
    NEVER,
    SCHEDULES,
    STEPS,
    arrivals,
    compared,
    course,
    curves,
    fitted,
    row_of,
)
from dynamix_ps.sim.cluster.fitted import FITTED
from dynamix_ps.sim.scenario.parts import WorkloadName

PARTS = np.arange(STEPS + 1) / STEPS


@pytest.mark.parametrize("name", MEASURED)
def test_ratios_are_those_of_real_trainings(name: WorkloadName) -> None:
    real = MEASURED[name]
    fit = compared(row_of(FITTED[name]), FITTED[name], real, curves(name))
    assert bool(fit.dies[0]) is real.dies
    assert fit.off[0] < 0.06  # of the test losses of weights and of their average
    for schedule, measured, ratio in zip(SCHEDULES, real.ratios, fit.ratios[:, 0], strict=True):
        if measured == NEVER:
            assert ratio > 1.6, schedule.title  # 1.8 is the end of the budget
        elif not math.isnan(measured):
            assert ratio == pytest.approx(measured, rel=0.15), schedule.title


def test_arrival_is_where_the_loss_falls_to_the_level() -> None:
    falls = np.exp(-np.linspace(0, 5, STEPS + 1))[:, None]
    stays = np.ones((STEPS + 1, 1))
    at = arrivals(np.hstack([falls, stays]), np.array([math.exp(-2), 0.5]))
    assert at.tolist() == [pytest.approx(0.4), NEVER]


def test_numbers_are_found_again_from_what_they_predict() -> None:
    known, measured = FITTED["resnet-adam"], MEASURED["resnet-adam"]
    trainings = [
        one._replace(loss=1 + predicted.loss[10:, 0], averaged=1 + predicted.averaged[10:, 0], parts=PARTS[10:])
        for one in curves("resnet-adam")
        for predicted in (course(row_of(known), known, one.schedule),)
    ]
    fit = compared(row_of(known), known, measured, trainings)
    predicted = measured._replace(ratios=tuple(fit.ratios[:, 0].tolist()), noise_batches=float(fit.noise_batches[0]))
    found = fitted(known, predicted, trainings, np.random.default_rng(0), candidates=300)
    again = compared(row_of(found), known, predicted, trainings)
    assert again.cost[0] < 3
    assert again.off[0] < 0.005
    wrong = compared(row_of(FITTED["cnn-adam"]), known, predicted, trainings)
    assert wrong.cost[0] > 20
