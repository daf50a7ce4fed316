"""The learned policy in a live run: who is credited, what it learns, and that no input breaks it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamix_ps.config.schema import Ppo
from dynamix_ps.errors import PolicyError
from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import View
from dynamix_ps.policy.learned.policy import PpoPolicy, make_ppo
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from tests.control_plane import record, run_under, view
from tests.policy_cluster import any_views, assert_valid

SPACES = ("structured", "paper")
EQUAL = Plan(0, (400, 400, 400))


def policy(workers: int = 3, seed: int = 0, takes_effect: bool = True, **ppo: Any) -> PpoPolicy:
    settings_: dict[str, Any] = {"space": "paper", "file": "fresh", "learn": True, "hidden": 16} | ppo
    return make_ppo(Ppo(**settings_), workers, np.random.default_rng(seed), learn=takes_effect)


def update(deciding: PpoPolicy) -> Any:
    return deciding.finish_update(deciding.begin_update()())


def adopted(plan: Plan, sizes: tuple[int, ...]) -> Plan:
    return plan if sizes == plan.batch_sizes else Plan(plan.version + 1, sizes)


def drive(deciding: PpoPolicy, windows: int, plan: Plan) -> tuple[Plan, list[float]]:
    """A cluster that adopts every plan at once; reward as configured. Updates as they fall due."""
    rewards = []
    for window in range(windows):
        decision = deciding.decide(view(plan, run_under(plan, window)))
        rewards += [] if decision.reward is None else [decision.reward]
        plan = adopted(plan, decision.batch_sizes)
        if deciding.update_due:
            assert update(deciding)["accepted"] == 1
    return plan, rewards


def test_all_five_steps_are_tried() -> None:
    plan = Plan(0, (400,) * 200)
    sizes = policy(workers=200).decide(view(plan, run_under(plan, 0))).batch_sizes
    assert set(sizes) == {300, 375, 400, 425, 500}


@pytest.mark.parametrize("space", SPACES)
def test_keeps_the_plan_in_windows_that_are_not_clean(space: str) -> None:
    deciding, plan = policy(space=space), Plan(4, (100, 200, 300))
    clean = run_under(plan, 0)
    old = [*clean[:2], record(2, plan_version=3)]
    flagged = [*clean[:2], record(2, plan_version=4, flagged=True)]
    for records in (old, flagged, [None, None, None]):
        assert deciding.decide(view(plan, list(records))).batch_sizes == plan.batch_sizes


@pytest.mark.parametrize("space", SPACES)
def test_an_absent_worker_keeps_its_size_and_the_others_act(space: str) -> None:
    plan = Plan(0, (400,) * 40)
    records = run_under(plan, 0)
    records[7] = None
    sizes = policy(workers=40, space=space).decide(view(plan, records)).batch_sizes
    assert sizes[7] == 400
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("space", SPACES)
def test_reward_is_credited_to_the_plan_that_asked_for_it(space: str) -> None:
    deciding = policy(space=space, windows_per_update=2)
    first = deciding.decide(view(EQUAL, run_under(EQUAL, 0)))
    assert first.reward is None
    asked = Plan(1, first.batch_sizes)
    # the plan is not in force yet, then only partly: nothing is credited, the decision stays open
    waiting = [record(rank, 1, plan_version=0, batch_size=400) for rank in range(3)]
    assert deciding.decide(view(asked, list(waiting))).reward is None
    mixed = [record(rank, 2, plan_version=1, flagged=True) for rank in range(3)]
    assert deciding.decide(view(asked, list(mixed))).reward is None
    assert deciding.decide(view(asked, run_under(asked, 3))).reward is not None
    # a plan of somebody else: the open decision is dropped
    foreign = Plan(9, (77, 77, 77))
    assert deciding.decide(view(foreign, run_under(foreign, 4))).reward is None
    assert not deciding.update_due


@pytest.mark.parametrize("space", SPACES)
def test_an_update_may_fall_due_after_a_plan_of_somebody_else(space: str) -> None:
    deciding = policy(space=space, windows_per_update=2)
    _, rewards = drive(deciding, 3, EQUAL)
    assert len(rewards) == 2 and not deciding.update_due  # the second is not known to be followed
    foreign = Plan(9, (77, 77, 77))
    assert deciding.decide(view(foreign, run_under(foreign, 4))).reward is None
    assert deciding.update_due
    assert update(deciding)["accepted"] == 1
    drive(deciding, 8, foreign)


def test_updates_every_so_many_windows() -> None:
    deciding = policy(windows_per_update=4)
    plan, _ = drive(deciding, 5, EQUAL)
    assert not deciding.update_due
    deciding.decide(view(plan, run_under(plan, 5)))
    assert deciding.update_due
    diagnostics = update(deciding)
    assert diagnostics["worker_samples"] == 12
    assert diagnostics["updates"] == 1
    assert {"worker_approx_kl", "worker_clip_fraction", "worker_entropy"} <= diagnostics.keys()
    assert not deciding.update_due


def test_decisions_go_on_while_an_update_is_under_way() -> None:
    deciding = policy(windows_per_update=4, space="structured")
    plan = EQUAL
    for window in range(6):
        plan = adopted(plan, deciding.decide(view(plan, run_under(plan, window))).batch_sizes)
    learn = deciding.begin_update()
    assert not deciding.update_due
    for window in range(6, 9):
        plan = adopted(plan, deciding.decide(view(plan, run_under(plan, window))).batch_sizes)
    assert {"batch_samples", "share_samples"} <= deciding.finish_update(learn()).keys()
    for window in range(9, 11):
        plan = adopted(plan, deciding.decide(view(plan, run_under(plan, window))).batch_sizes)
    assert deciding.update_due
    assert update(deciding)["updates"] == 2


def test_learns_online_what_the_reward_says() -> None:
    # only the size penalty counts: small batches are best
    weights: dict[str, Any] = {"alpha": 0.0, "beta": 0.0, "delta": 1.0}
    deciding = policy(seed=1, gamma=0.0, learning_rate=5e-3, windows_per_update=8, hidden=64, **weights)
    plan, rewards = drive(deciding, 240, Plan(0, (500, 500, 500)))
    assert np.mean(rewards[-20:]) > np.mean(rewards[:20]) + 1
    assert max(plan.batch_sizes) <= 157


def test_structured_learns_online_too() -> None:
    # iterations always take 0.1 s, so only their efficiency counts: large batches are best
    deciding = policy(seed=1, space="structured", gamma=0.0, learning_rate=5e-3, windows_per_update=8)
    plan = Plan(0, (100, 100, 100))
    for window in range(160):
        records = run_under(plan, window, noise_variance=3000.0, noise_signal=1.0)
        seen = View(window, plan, ((32, 1024),) * 3, tuple(records), lr_rule="adascale", reference_batch=300)
        plan = adopted(plan, deciding.decide(seen).batch_sizes)
        if deciding.update_due:
            update(deciding)
    assert sum(plan.batch_sizes) > 2000


@pytest.mark.parametrize("space", SPACES)
def test_same_seed_same_decisions(space: str) -> None:
    runs = [drive(policy(seed=seed, space=space), 12, Plan(0, (300, 300, 300))) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("workers", [1, 2, 7, 32])
def test_any_number_of_workers_learns_and_infers(workers: int, space: str, tmp_path: Path) -> None:
    deciding, plan = policy(workers=workers, space=space), Plan(0, (64,) * workers)
    drive(deciding, 7, plan)
    deciding.save(tmp_path / "policy.npz")
    # one file serves any number of workers
    infers = policy(workers=5, space=space, file=str(tmp_path / "policy.npz"), learn=False)
    drive(infers, 3, Plan(0, (64,) * 5))


@pytest.mark.parametrize("space", SPACES)
def test_inference_changes_nothing_and_draws_nothing(space: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.npz"
    taught = policy(space=space, windows_per_update=2)
    drive(taught, 8, EQUAL)
    taught.save(file)
    plans = []
    for seed in range(2):
        deciding = policy(space=space, file=str(file), learn=False, seed=seed)
        plans.append(drive(deciding, 12, EQUAL))
        assert not deciding.update_due
        deciding.save(tmp_path / "after.npz")
        stored, after = load_policy(file, None), load_policy(tmp_path / "after.npz", None)
        for name, weights in stored.networks.items():
            np.testing.assert_array_equal(weights.params.flat, after.networks[name].params.flat)
            normaliser, kept = weights.normaliser, after.networks[name].normaliser
            assert normaliser is not None and kept is not None
            np.testing.assert_array_equal(normaliser.count, kept.count)
        assert stored.provenance == after.provenance
    assert plans[0] == plans[1]
    assert not plans[0][1], "a reward is for learning"


def test_a_run_that_cannot_learn_collects_nothing() -> None:
    deciding = policy(takes_effect=False, windows_per_update=1)
    drive(deciding, 6, EQUAL)
    assert not deciding.update_due


def test_resumes_with_what_was_learned(tmp_path: Path) -> None:
    deciding = policy(windows_per_update=2)
    plan, _ = drive(deciding, 9, EQUAL)
    deciding.save(tmp_path / "saved.npz")
    settings_ = Ppo(space="paper", file="fresh", learn=True, hidden=16, windows_per_update=2)
    later = make_ppo(settings_, 3, np.random.default_rng(0), learn=True, resume=tmp_path / "saved.npz")
    drive(later, 9, plan)
    later.save(tmp_path / "later.npz")
    updates = [load_policy(tmp_path / name, None).provenance["updates"] for name in ("saved.npz", "later.npz")]
    assert 0 < updates[0] < updates[1]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="fresh"):
        make_ppo(Ppo(file="fresh"), 3, np.random.default_rng(0), learn=True)
    policy(space="paper").save(tmp_path / "paper.npz")
    with pytest.raises(PolicyError, match="space: found paper, expected structured"):
        policy(space="structured", file=str(tmp_path / "paper.npz"))
    with pytest.raises(PolicyError, match="hidden: found 16, expected 32"):
        policy(space="paper", file=str(tmp_path / "paper.npz"), hidden=32)
    with pytest.raises(PolicyError, match="missing"):
        policy(file=str(tmp_path / "missing.npz"))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(any_views(windows=6), st.booleans())
def test_any_windows_give_valid_sizes_and_finite_weights(space: str, views: list[View], takes_effect: bool) -> None:
    """NaN and absurd values, one worker, workers that leave and join, windows without anybody, plans of others."""
    deciding = policy(len(views[0].bounds), space=space, takes_effect=takes_effect, windows_per_update=1)
    for seen in views:
        decision = deciding.decide(seen)
        if seen.clean:
            assert_valid(decision, seen)
        else:
            assert decision.batch_sizes == seen.plan.batch_sizes
        assert decision.reward is None or np.isfinite(decision.reward)
        if deciding.update_due:
            update(deciding)
    assert all(np.isfinite(agent.weights.params.flat).all() for agent in deciding._agent.networks.values())


@pytest.mark.parametrize("space", SPACES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_workers_that_leave_and_join_are_learned_around(space: str, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 4))
    deciding, plan = policy(workers, space=space, windows_per_update=2), Plan(0, (64,) * workers)
    for window in range(10):
        there = data.draw(st.lists(st.booleans(), min_size=workers, max_size=workers))
        records = [one if here else None for one, here in zip(run_under(plan, window), there, strict=True)]
        seen = view(plan, records)
        decision = deciding.decide(seen)
        assert_valid(decision, seen)
        for here, size, before in zip(there, decision.batch_sizes, plan.batch_sizes, strict=True):
            assert here or size == before
        plan = adopted(plan, decision.batch_sizes)
        if deciding.update_due:
            update(deciding)


def saved(folder: Path, settings_: dict[str, Any]) -> Path:
    """A policy file that tells these settings of its training."""
    file = folder / "trained.npz"
    policy(space="structured").save(file)
    stored = load_policy(file, None)
    save_policy(file, dataclasses.replace(stored, provenance={"origin": "simulator", "settings": settings_}))
    return file


def told(deciding: PpoPolicy, folder: Path) -> dict[str, Any]:
    """The settings that `dynamix policy inspect` shows of what this policy saves."""
    deciding.save(folder / "now.npz")
    return dict(load_policy(folder / "now.npz", None).provenance["settings"])


def test_learning_on_keeps_the_settings_of_the_file_unless_the_cluster_file_sets_them(tmp_path: Path) -> None:
    learner = {"gamma": 0.6, "entropy": 0.001, "learning_rate": 0.5, "epochs": 9, "minibatches": 99}
    trained = {"learner": learner, "reward": {"name": "PaperReward", "beta": 0.25}, "environments": 128}
    file = str(saved(tmp_path, trained))
    kept = told(policy(space="structured", file=file), tmp_path)
    assert (kept["learner"]["gamma"], kept["learner"]["entropy"]) == (0.6, 0.001)
    assert (kept["reward"]["name"], kept["reward"]["beta"]) == ("PaperReward", 0.25)
    assert kept["environments"] == 128
    ours = told(policy(space="structured", file=file, gamma=0.8, reward="goodput"), tmp_path)
    assert (ours["learner"]["gamma"], ours["learner"]["entropy"]) == (0.8, 0.001)
    assert ours["reward"]["name"] == "GoodputReward"


def test_how_large_a_step_is_belongs_to_the_job_and_what_a_file_does_not_tell_is_the_default(tmp_path: Path) -> None:
    defaults, learner = Ppo(), {"learning_rate": 0.5, "epochs": 9, "minibatches": 99}
    kept = told(policy(space="structured", file=str(saved(tmp_path, {"learner": learner}))), tmp_path)["learner"]
    for name in ("learning_rate", "epochs", "minibatches", "gamma", "gae_lambda", "target_kl"):
        assert kept[name] == getattr(defaults, name), name


@pytest.mark.parametrize("space", SPACES)
def test_the_files_that_ship_tell_their_discount(space: str, tmp_path: Path) -> None:
    shipped = told(policy(space=space, file=None, hidden=64), tmp_path)
    assert shipped["learner"]["gamma"] == 0.6


def test_a_policy_that_does_not_learn_acts_on_the_time_of_its_file_alone(tmp_path: Path) -> None:
    files = {}
    for time in ("per_iteration", "per_sample"):
        files[time] = str(tmp_path / f"{time}.npz")
        policy(time=time).save(Path(files[time]))
    for time, file in files.items():
        assert told(policy(file=file, learn=False), tmp_path)["reward"]["time"] == time
        assert told(policy(file=file, learn=False, time=time), tmp_path)["reward"]["time"] == time
    expected = r"per_iteration\.npz: trained with time per_iteration, expected policy\.ppo\.time = per_sample"
    with pytest.raises(PolicyError, match=expected):
        policy(file=files["per_iteration"], learn=False, time="per_sample")
    with pytest.raises(PolicyError, match=r"trained with time per_iteration, expected policy\.ppo\.time"):
        policy(file=None, hidden=64, learn=False, time="per_sample")  # the file that ships
    learning_on = policy(file=files["per_iteration"], time="per_sample")
    assert told(learning_on, tmp_path)["reward"]["time"] == "per_sample"


def test_settings_in_a_file_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, {"learner": {"gamma": 7.0}})
    with pytest.raises(PolicyError, match=r"(?s)trained\.npz: its settings cannot be used: .*gamma"):
        policy(space="structured", file=str(file))
