"""One training of a policy in the simulator: progress, checkpoints, and what is left in its folder."""

from __future__ import annotations

import csv
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from dynamix_ps.errors import UsageError
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward
from dynamix_ps.policy.ppo.policy_file import save_policy
from dynamix_ps.report.plots.plots import DOTS_PER_INCH
from dynamix_ps.run_record.manifest import versions
from dynamix_ps.sim.contest.pictures import learning_curve
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.training.scenario_draw import draw_from
from dynamix_ps.sim.training.trainer import Draw, PolicyTrainer, TrainSettings, paper_settings
from dynamix_ps.terminal import progress_bar

CHECKPOINT_S = 30.0
REWARDS = {"goodput": GoodputReward, "paper": PaperReward}
POLICY, CHECKPOINT, LEARNING, PICTURE = "policy.npz", "checkpoint.npz", "learning.csv", "learning.png"


def train_from(
    scenarios: Sequence[str], chosen: Mapping[str, Any], folder: Path, resume: bool, command: str, console: Console
) -> None:
    """Train on these scenarios, without any on the full variety. `chosen`: the options that `settings_of` knows."""
    draw = draw_from([load_scenario(name) for name in scenarios]) if scenarios else None
    train_policy(settings_of(**chosen), draw, folder, resume, command, console)


def train_policy(
    settings: TrainSettings, draw: Draw | None, folder: Path, resume: bool, command: str, console: Console
) -> None:
    """Train to `settings.total_windows` and leave policy, curve and checkpoint in `folder`.

    Args:
        draw: where clusters come from; None: the full variety.
        resume: go on from the checkpoint there.
        command: what was typed, for the provenance.

    Raises:
        UsageError: the folder holds a training and `resume` is not set, or the other way round.
        PolicyError: the checkpoint is unusable.
    """
    checkpoint = folder / CHECKPOINT
    if resume and not checkpoint.exists():
        raise UsageError(f"{checkpoint}: no such file, expected a checkpoint; leave --resume out to begin")
    if checkpoint.exists() and not resume:
        raise UsageError(f"{folder}: holds a training already; go on with --resume, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    if resume:
        trainer = PolicyTrainer.resume(checkpoint, settings, draw)
    else:
        trainer = PolicyTrainer(settings, np.random.default_rng(settings.seed), draw_=draw)
    log = LearningLog(folder, trainer.windows)
    began_s, saved_s = time.monotonic(), time.monotonic()
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("cluster windows", total=settings.total_windows, completed=trainer.windows)
            while not trainer.finished:
                diagnostics = trainer.iterate()
                log.add(trainer.windows, diagnostics)
                bar.update(task, completed=trainer.windows, description=f"reward {diagnostics['reward']:+.3f}")
                if time.monotonic() - saved_s > CHECKPOINT_S:
                    trainer.checkpoint(checkpoint)
                    saved_s = time.monotonic()
    finally:
        trainer.checkpoint(checkpoint)
        log.close()
    provenance = {
        "command": command,
        "seconds": round(log.before_s + time.monotonic() - began_s, 1),
        "versions": {name: version for name, version in versions().items() if name in ("python", "numpy")},
    }
    save_policy(folder / POLICY, trainer.stored(provenance))
    draw_learning(folder / PICTURE, log.rows, settings)
    console.print(f"{folder / POLICY}: {trainer.windows:,} windows in {provenance['seconds']:,} s", highlight=False)


class LearningLog:
    """Diagnostics of every update: a CSV file and TensorBoard events. What follows the checkpoint is dropped.

    Args:
        windows: how many the checkpoint has learned from; 0 at the start.
    """

    def __init__(self, folder: Path, windows: int) -> None:
        from tensorboardX import SummaryWriter

        self._file = folder / LEARNING
        self._began_s = time.monotonic()
        before = read_learning(self._file) if windows else []
        self.rows = [row for row in before if row["windows"] <= windows]
        self.before_s = self.rows[-1]["seconds"] if self.rows else 0.0
        self._out = self._file.open("w", newline="", encoding="utf-8")
        self._writer: csv.DictWriter[str] | None = None
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=windows)
        for row in self.rows:
            self._write(row)

    def add(self, windows: int, diagnostics: Mapping[str, float]) -> None:
        """Take in an update, after `windows` cluster windows in all."""
        seconds = self.before_s + time.monotonic() - self._began_s
        row = {"windows": float(windows), "seconds": round(seconds, 2)} | dict(diagnostics)
        self.rows.append(row)
        self._write(row)
        for name, value in diagnostics.items():
            if math.isfinite(value):
                self._events.add_scalar(name, value, windows)

    def close(self) -> None:
        self._out.close()
        self._events.close()

    def _write(self, row: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._out, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._out.flush()


def read_learning(file: Path) -> list[dict[str, float]]:
    """The rows of a learning.csv, a last one that was cut off left out. Raises OSError."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return [{name: float(value) for name, value in row.items()} for row in rows if all(row.values())]


def draw_learning(file: Path, rows: list[dict[str, float]], settings: TrainSettings) -> None:
    """The learning curve as a picture. Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    reward = settings.as_json()["reward"]["name"]
    learning_curve(figure, rows, f"{settings.space} actions, {reward}, learner {settings.learner.learner}")
    figure.savefig(file)


def settings_of(
    *,
    space: str,
    reward: str | None,
    time: Literal["per_iteration", "per_sample"] | None,
    learner: Literal["clip", "simple"],
    workers: tuple[int, ...],
    windows: int | None,
    environments: int | None,
    seed: int,
) -> TrainSettings:
    """Settings from the command line; what was not given keeps its default.

    Raises:
        UsageError: `time` is given for a reward that does not have it.
    """
    start = paper_settings() if space == "paper" else TrainSettings()
    given = {"n_workers": workers or None, "total_windows": windows, "environments": environments}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if reward is not None:
        changes["reward"] = REWARDS[reward]()
    if time is not None:
        chosen = changes.get("reward", start.reward)
        if not isinstance(chosen, PaperReward):
            raise UsageError(
                "--time is only for the reward paper; leave it out, or add --space paper or --reward paper"
            )
        changes["reward"] = dataclasses.replace(chosen, time=time)
    learner_settings = dataclasses.replace(start.learner, learner=learner)
    return dataclasses.replace(start, seed=seed, learner=learner_settings, **changes)
