"""Policies over paired seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.rehearsal.comparison import Comparison, choose_target, seeds_that_change_nothing
from dynamix_ps.rehearsal.outcome import Evaluated, EvaluationTarget, RehearsalOutcome
from dynamix_ps.rehearsal.power import smallest_difference
from dynamix_ps.rehearsal.report import about, sentence
from dynamix_ps.rehearsal.study import Study, StudyRun
from dynamix_ps.sim.scenario.load import Scenario

TARGET = EvaluationTarget("accuracy", 0.8, higher_is_better=True)


def outcome(samples_per_s: float, luck: float = 1.0, best: float = 0.95, **values: Any) -> RehearsalOutcome:
    """Accuracy grows in 20 steps of 100 samples, `luck` times as fast, to at most `best`."""
    curve = tuple(
        Evaluated(100 * step / samples_per_s, 100 * step, {"accuracy": min(0.05 * step * luck, best)})
        for step in range(1, 21)
    )
    given = {"train_s": curve[-1].time_s, "iterations": 100, "plans": 3, "passes": 2, "diverged": False}
    return RehearsalOutcome(**(given | values), curve=curve, higher_is_better={"accuracy": True})


def outcomes(speeds: dict[str, float], lucks: list[float], **best: float) -> dict[StudyRun, RehearsalOutcome]:
    return {
        StudyRun("any", policy, seed): outcome(speed, luck, best.get(policy, 0.95))
        for policy, speed in speeds.items()
        for seed, luck in enumerate(lucks)
    }


def by_seed(known: list[RehearsalOutcome]) -> dict[StudyRun, RehearsalOutcome]:
    return {StudyRun("any", "any", seed): one for seed, one in enumerate(known)}


def test_pairs_take_the_luck_of_the_seed_out():
    found = outcomes({"quick": 200.0, "slow": 150.0}, [1.2, 1.0, 1.3, 0.9])
    (quick, slow) = Comparison(found, TARGET, "slow").standings("any", ("quick", "slow"))
    assert (quick.time.value, quick.time.low, quick.time.high) == pytest.approx((0.75, 0.75, 0.75))
    assert quick.samples is not None and quick.samples.value == pytest.approx(1.0)
    assert quick.seconds_per_sample is not None and quick.seconds_per_sample.value == pytest.approx(0.75)
    assert (quick.quicker, quick.seeds, slow.time.value) == (4, 4, 1.0)
    assert sentence(quick, "slow").startswith("quick against slow: 25.0 % less time")


def test_a_difference_that_is_not_seen_comes_with_one_that_would_be():
    found = outcomes({"quick": 150.0, "slow": 150.0}, [1.0, 1.2])
    other = {run: outcome(run_speed, 1.0) for run, run_speed in zip(found, (140.0, 165.0, 150.0, 150.0), strict=True)}
    (quick, _) = Comparison(other, TARGET, "slow").standings("any", ("quick", "slow"))
    logs = np.log(150 / np.array([140.0, 165.0]))
    assert quick.shown == pytest.approx(smallest_difference(logs))
    assert f"; one of {100 * quick.shown:.2g} % would show" in sentence(quick, "slow")


def test_policies_that_decide_the_same_take_the_same_time():
    found = outcomes({"same": 150.0, "slow": 150.0}, [1.2, 1.0])
    (same, _) = Comparison(found, TARGET, "slow").standings("any", ("same", "slow"))
    assert sentence(same, "slow") == "same against slow: the same time in every seed"


@pytest.mark.parametrize(
    ("event", "comes"),
    [({"at_epoch": 1}, True), ({"at_epoch": 2}, False), ({"at_s": 9.0}, True), ({"at_s": 11.0}, False)],
)
def test_changes_that_come_after_training_are_told(event: dict[str, float], comes: bool, tmp_path: Path):
    """A run trains two passes in ten seconds."""
    config = Config.model_validate({"cluster": {"workers": ({}, {})}})
    trace = ({**event, "what": "compute", "value": 2.0},)
    scenario = Scenario.model_validate({"name": "any", "workers": ({"count": 2},), "trace": trace})
    study = Study(tmp_path, config, [scenario], ["slow"], [0], ["python"])
    told = about(study, scenario, Comparison(outcomes({"slow": 200.0}, [1.0]), TARGET, "slow"))
    assert ("None of the 1 changes" in told) == (not comes)


def test_who_does_not_arrive_never_looks_quicker():
    found = outcomes({"dead": 1000.0, "slow": 150.0}, [1.0, 1.1, 0.9], dead=0.5)
    (dead, slow) = Comparison(found, TARGET, "slow").standings("any", ("dead", "slow"))
    assert (dead.reached, slow.reached, dead.samples) == (0, 3, None)
    assert dead.time.low >= 1


def test_only_seeds_that_both_have_are_compared():
    found = outcomes({"quick": 200.0, "slow": 150.0}, [0.8, 1.0, 1.3])
    del found[StudyRun("any", "slow", 2)]
    (quick, _) = Comparison(found, TARGET, "slow").standings("any", ("quick", "slow"))
    assert quick.seeds == 2


def test_without_a_target_it_is_nearly_what_every_run_reaches():
    known = [outcome(100.0, best=0.9), outcome(100.0, best=0.7), outcome(100.0, best=0.3, diverged=True)]
    target = choose_target(by_seed(known), None, None)
    first = 0.05
    expected = pytest.approx(first + 0.98 * (0.7 - first))
    assert (target.name, target.higher_is_better, target.value) == ("accuracy", True, expected)
    assert known[1].reached(target) is not None


@pytest.mark.parametrize(
    ("name", "text"), [("loss", "the script evaluates accuracy, got 'loss'"), (None, "evaluates nothing")]
)
def test_a_target_that_cannot_be_is_refused(name: str | None, text: str):
    known = [outcome(100.0)] if name else []
    with pytest.raises(UsageError, match=text):
        choose_target(by_seed(known), name, 0.5)


@pytest.mark.parametrize("value", [None, 0.5])
@pytest.mark.parametrize("count", [1, 2])
def test_every_run_needs_three_evaluations(count: int, value: float | None):
    whole, few = outcome(100.0), outcome(100.0)
    few = replace(few, curve=few.curve[:count])
    with pytest.raises(
        UsageError, match=rf"policy any, scenario any, seed 1 evaluated accuracy {count} times?, expected 3"
    ):
        choose_target(by_seed([whole, few]), None, value)
    choose_target(by_seed([whole, replace(few, diverged=True)]), None, value)  # it did not live to see three
    choose_target(by_seed([whole, replace(few, curve=whole.curve[:3])]), None, value)


def test_evaluations_of_another_value_do_not_count():
    one = outcome(100.0)
    curve = tuple(Evaluated(at.time_s, at.samples, {"loss": 0.1}) for at in one.curve[2:])
    with pytest.raises(UsageError, match=r"evaluated accuracy 2 times"):
        choose_target(by_seed([replace(one, curve=one.curve[:2] + curve)]), "accuracy", 0.5)


def test_nothing_but_diverged_runs_give_no_target():
    dead = by_seed([outcome(100.0, diverged=True)])
    with pytest.raises(UsageError, match="the loss of every run became infinite"):
        choose_target(dead, None, None)
    assert choose_target(dead, None, 0.5).value == 0.5


def test_seeds_that_change_nothing_are_found():
    found = outcomes({"quick": 200.0}, [0.8, 1.0])
    assert seeds_that_change_nothing(found) is None
    found = outcomes({"quick": 200.0}, [0.8, 0.8])
    assert seeds_that_change_nothing(found) == (StudyRun("any", "quick", 0), StudyRun("any", "quick", 1))
