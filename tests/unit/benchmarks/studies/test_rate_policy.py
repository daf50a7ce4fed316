"""The study of a network that corrects linear decay: its contenders are what they are called, and pairs are pairs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import rate_policy as study
from benchmarks.studies.rate_agent import FEATURES, FOLLOW, RateTraining, Trainings, fresh_network, train
from benchmarks.studies.rate_policy import Case, by, by_constant, by_guard, by_rule, clusters, ends
from dynamix_ps.policy.rate.limits import STEPS
from dynamix_ps.sim.cluster.fitted import FITTED

CASES = (Case("cnn-sgd", "tuned", 1.0), Case("cnn-sgd", "rate x 4", 1.0), Case("resnet-adam", "B_0 / 4", 1.0))
SEEDS = 3


def test_an_untrained_network_follows_the_rule() -> None:
    parameters = clusters(CASES, SEEDS)
    rule, network = ends(parameters, by_rule), ends(parameters, by(fresh_network(np.random.default_rng(0))))
    assert network.loss.tolist() == rule.loss.tolist()


def test_the_rule_decays_within_the_limits_and_the_guard_alone_leaves_the_rate() -> None:
    trainings = Trainings(clusters(CASES[:1], SEEDS), np.random.default_rng(0))
    seen = []
    while not trainings.simulator.truncated.all():
        rows, _ = trainings.window()
        seen.append(float(trainings.simulator.lr_factor[0]))
        by_rule(trainings, rows)
    steps = np.diff(np.log2(seen))
    assert seen[:2] == [1.0, 1.0]
    assert seen[-1] <= 0.25
    assert set(np.round(steps, 3)) <= {0.0, -0.5, -1.0}
    assert (np.minimum(steps[1:], steps[:-1]) == np.minimum(steps[1:] + steps[:-1], 0)).all()  # never twice in a row
    still = ends(clusters(CASES[:1], SEEDS), by_guard)
    fixed = ends(clusters(CASES[:1], SEEDS), None)
    assert still.loss.tolist() == fixed.loss.tolist()


def test_what_dies_without_guard_lives_with_it() -> None:
    parameters = clusters(CASES[1:2], SEEDS)
    assert ends(parameters, None).dead.any()
    for decide in (by_guard, by_rule, by_constant):
        assert not ends(parameters, decide).dead.any()


def test_rewards_add_up_to_what_the_training_achieves() -> None:
    trainings = Trainings(clusters(CASES, SEEDS), np.random.default_rng(0))
    total = np.zeros(len(CASES) * SEEDS)
    for _ in range(10):
        rows, rewards = trainings.window()
        total += rewards
        trainings.decide(np.full(len(rows), STEPS.index(0.5)))
    assert rows.shape == (len(total), len(FEATURES))
    assert total == pytest.approx(-np.log(trainings.simulator.workload.averaged), rel=1e-4)
    assert (trainings.correction == 0.125).all()


def test_the_same_training_has_the_same_cluster_whatever_is_wrong() -> None:
    tuned, wrong = (clusters((Case("gpt-adamw", how, 1.0),), SEEDS) for how in ("tuned", "rate / 4"))
    assert (tuned.curvature == wrong.curvature).all()
    assert (tuned.per_sample_s == wrong.per_sample_s).all()
    assert wrong.script_rate.tolist() == [0.25] * SEEDS
    batch = clusters((Case("gpt-adamw", "B_0 / 4", 3.0),), SEEDS)
    assert (batch.tuned_batch == 4 * batch.reference_batch).all()
    assert (batch.budget_samples == 12 * tuned.budget_samples).all()


def test_a_short_training_of_a_network_is_reproducible() -> None:
    short = RateTraining(total_windows=2_000, environments=16, rollout_windows=32)
    told: list[str] = []
    first, again = (train(("cnn-adam",), short, told.append).weights.params.flat for _ in range(2))
    assert first.tobytes() == again.tobytes()
    assert len(told) == 8
    assert FOLLOW == 2


def test_the_oracle_takes_the_best_and_the_table_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "CASES", CASES)
    monkeypatch.setattr(study, "CONSTANTS", (0.5, 1.0))
    monkeypatch.setattr(study, "HELD_OUT", (("cnn-sgd", "resnet-adam"),))
    short = RateTraining(total_windows=500, environments=8, rollout_windows=16)
    tasks = [(name, tuple(FITTED)) for name in (study.FIXED, study.GUARD, study.RULE, study.ORACLE)]
    monkeypatch.setattr(study, "TASKS", (*tasks, (study.NETWORK, ("cnn-sgd", "resnet-adam"))))
    rows: list[dict[str, str]] = []
    while left := study.missing(rows):
        rows += study.measured(left[0], SEEDS, short)
    assert len(rows) == 5 * 3 * SEEDS
    names = (study.FIXED, study.GUARD, study.RULE, study.NETWORK, study.ORACLE)
    contenders = {name: study.ends_of(rows, name) for name in names}
    both = np.minimum(contenders[study.RULE].averaged, contenders[study.GUARD].averaged)
    assert (contenders[study.ORACLE].averaged <= 1.001 * both).all()
    table = study._table(contenders, SEEDS)
    shown = {row["trainings"]: row for row in table}
    assert set(shown) == {"tuned", "rate x 4", "B_0 / 4", "`cnn-sgd`", "`resnet-adam`", "all"}
    assert shown["rate x 4"]["dead: fixed, guard, rule, network"] == "3, 0, 0, 0"
