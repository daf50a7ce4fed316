from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts import ppo_reference
from benchmarks.parts.ppo_reference import LAST_EPISODES, draw, measure, summary
from benchmarks.parts.references.ppo_trainings import LEARNERS, TASKS, train_ours
from dynamix_ps.errors import UsageError

STEPS = 1000


class MadeUp:
    """Trainings without a process: all episodes of ours have the return that solves, the others' one less."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, episodes: int = LAST_EPISODES) -> None:
        self.started: list[tuple[str, str, int]] = []
        self._episodes = episodes
        monkeypatch.setattr(ppo_reference, "_in_process", self)

    def __call__(self, environment: str, who: str, seed: int, steps: int) -> dict[str, Any]:
        self.started.append((environment, who, seed))
        total = TASKS[environment].solved_return - (who != "dynamix")
        wall_s = {"dynamix": 1.0, "stable-baselines3": 4.0}[who]
        return {"wall_s": wall_s, "episodes": [(place, total) for place in range(self._episodes)]}


def test_every_task_has_the_threshold_of_gymnasium() -> None:
    assert {name: task.solved_return for name, task in TASKS.items()} == {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}


def test_seeds_begin_at_1_and_the_first_learner_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeUp(monkeypatch)
    measure(2, STEPS, None)
    ours, theirs = LEARNERS
    order = [(ours, 1), (theirs, 1), (theirs, 2), (ours, 2)]
    assert made.started == [(environment, *one) for environment in TASKS for one in order]


def test_solved_seeds_and_the_ratio_of_wall_times_are_those_of_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeUp(monkeypatch)
    trainings = measure(3, STEPS, None)
    for environment in TASKS:
        figures = summary(environment, trainings)
        assert figures["solved"] == {"dynamix": 3, "stable-baselines3": 0}
        assert figures["wall_s"] == {"dynamix": 3.0, "stable-baselines3": 12.0}
        assert figures["ratio"] == 0.25


def test_too_few_episodes_solve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeUp(monkeypatch, episodes=LAST_EPISODES - 1)
    assert not any(one["solved"] for one in measure(1, STEPS, None))


def test_kept_trainings_are_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = MadeUp(monkeypatch)
    first = measure(1, STEPS, tmp_path)
    before = len(made.started)
    again = measure(2, STEPS, tmp_path)
    assert {seed for _, _, seed in made.started[before:]} == {2}
    assert summary("Acrobot-v1", [one for one in again if one["seed"] == 1]) == summary("Acrobot-v1", first)


def test_kept_trainings_of_other_steps_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    MadeUp(monkeypatch)
    measure(1, STEPS, tmp_path)
    with pytest.raises(UsageError, match=r"CartPole-v1-dynamix-1\.json.*name another folder for --keep"):
        measure(1, STEPS + 1, tmp_path)


def test_the_picture_has_a_row_per_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    MadeUp(monkeypatch)
    draw(tmp_path / "curves.png", measure(1, STEPS, None), STEPS)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("environment", TASKS)
def test_our_learner_trains_on_every_task(environment: str) -> None:
    wall_s, episodes = train_ours(TASKS[environment], 1, 600)
    assert wall_s > 0
    assert all(steps > 0 for steps, _ in episodes)
