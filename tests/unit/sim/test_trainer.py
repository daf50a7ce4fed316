"""Training a policy in the simulator, on a small scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward, Reward
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.training.scenario_draw import draw_from
from dynamix_ps.sim.training.trainer import PolicyTrainer, TrainSettings, paper_settings

SMALL: dict[str, Any] = {
    "learner": PpoSettings(hidden=8, minibatches=2, epochs=2),
    "n_workers": (1, 3),
    "environments": 6,
    "rollout_windows": 8,
    "total_windows": 48 * 4,
    "episode_windows": 20,
}
SPACES = {"structured": TrainSettings(**SMALL), "paper": paper_settings(**SMALL)}


def trainer(settings: TrainSettings, seed: int = 0) -> PolicyTrainer:
    return PolicyTrainer(settings, np.random.default_rng(seed))


def weights(one: PolicyTrainer) -> list[bytes]:
    return [agent.weights.params.flat.tobytes() for agent in one.networks.values()]


@pytest.mark.parametrize("space", SPACES)
def test_a_training_from_beginning_to_end(space: str) -> None:
    one, history = trainer(SPACES[space]), []
    before = weights(one)
    while not one.finished:
        history.append(one.iterate())
    assert [shown["windows"] for shown in history] == [48, 96, 144, 192]
    assert all(np.isfinite(value) for shown in history for value in shown.values())
    rates = [shown["learning_rate"] for shown in history]
    assert rates == sorted(rates, reverse=True) and rates[0] == 3e-4
    assert all(was != now for was, now in zip(before, weights(one), strict=True))
    for name in one.spec.features:
        assert {f"{name}/accepted", f"{name}/entropy", f"{name}/approx_kl"} <= history[0].keys()
        # ends of runs and their first decisions are left out, all else is learned from
        rows = 48 if name == "batch" else 3 * 8 + 9 * 8
        assert 0.8 * rows < history[2][f"{name}/samples"] < rows


def test_same_seed_same_bits() -> None:
    runs = []
    for seed in (3, 3, 4):
        one = trainer(SPACES["structured"], seed)
        shown = [one.iterate() for _ in range(2)]
        runs.append((weights(one), shown))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


def test_a_checkpoint_goes_on_where_it_was(tmp_path: Path) -> None:
    file, settings = tmp_path / "checkpoint.npz", SPACES["structured"]
    one = trainer(settings)
    one.iterate()
    one.checkpoint(file)
    twins = [PolicyTrainer.resume(file, settings) for _ in range(2)]
    for twin in twins:
        assert twin.windows == 48
        assert weights(twin) == weights(one)
        for name, agent in twin.networks.items():
            adam, normaliser = agent.weights.adam, agent.weights.normaliser
            assert adam is not None and adam.step == one.networks[name].weights.adam.step  # type: ignore[union-attr]
            assert normaliser is not None and (normaliser.count > 0).any()
    assert twins[0].iterate() == twins[1].iterate()
    assert twins[0].iterate()["learning_rate"] == pytest.approx(3e-4 * (1 - 96 / 192))


@pytest.mark.parametrize(
    "changes", [{"rollout_windows": 9}, {"reward": GoodputReward(balance=0.77)}, {"reward": PaperReward()}, {"seed": 1}]
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = SPACES["structured"]
    one = trainer(settings)
    one.checkpoint(tmp_path / "checkpoint.npz")
    with pytest.raises(PolicyError, match="found a training with settings"):
        PolicyTrainer.resume(tmp_path / "checkpoint.npz", dataclasses.replace(settings, **changes))


def test_files_that_are_no_such_checkpoint_are_refused(tmp_path: Path) -> None:
    one = trainer(SPACES["paper"])
    one.checkpoint(tmp_path / "paper.npz")
    with pytest.raises(PolicyError, match="space: found paper, expected structured"):
        PolicyTrainer.resume(tmp_path / "paper.npz", SPACES["structured"])
    with pytest.raises(PolicyError, match="missing"):
        PolicyTrainer.resume(tmp_path / "missing.npz", SPACES["paper"])
    save_policy(tmp_path / "live.npz", dataclasses.replace(one.stored({}), provenance={"origin": "fresh"}))
    with pytest.raises(PolicyError, match="found a training with settings null"):
        PolicyTrainer.resume(tmp_path / "live.npz", SPACES["paper"])


def test_a_stored_policy_tells_where_it_is_from(tmp_path: Path) -> None:
    one = trainer(SPACES["paper"])
    one.iterate()
    save_policy(tmp_path / "policy.npz", one.stored({"command": "how it was made"}))
    provenance = load_policy(tmp_path / "policy.npz", one.spec).provenance
    assert provenance["command"] == "how it was made"
    assert provenance["windows"] == 48
    assert provenance["settings"]["reward"] == {"name": "PaperReward", **dataclasses.asdict(PaperReward())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "reward"),
    # only progress per iteration counts, whatever it takes: not what the model advises, where learning begins
    [("structured", GoodputReward(throughput=0.0, change=0.0)), ("paper", PaperReward())],
)
def test_reward_rises_on_one_easy_scenario(space: str, reward: Reward) -> None:
    settings = dataclasses.replace(
        SPACES[space],
        reward=reward,
        learner=PpoSettings(gamma=0.5, learning_rate=2e-3, minibatches=4, hidden=32),
        n_workers=(2,),
        environments=16,
        rollout_windows=16,
        total_windows=16 * 16 * 30,
    )
    one = PolicyTrainer(settings, np.random.default_rng(0), draw_=draw_from([load_scenario("homogeneous")]))
    history = []
    while not one.finished:
        history.append(one.iterate())
    rewards = np.array([shown["reward"] for shown in history])
    assert rewards[-5:].mean() > rewards[:5].mean() + 0.07
