"""Records real runs to calibrate the simulator: three uneven workers, one training with different batch sizes.

Used by `python -m benchmarks.studies.bed.calibration --record`; about seven minutes on two cores. Each run becomes one
small file (dynamix_ps/sim/recorded.py).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from benchmarks.studies.launching import launched
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Metrics, PolicySection, WorkerSection
from dynamix_ps.sim.recorded import SUFFIX, write_recording

SPEEDS = (1.0, 0.5, 0.25)
LIMIT_S = 240.0
# After an iteration the C library returns memory to the system or keeps it, depending on earlier requests. Returning it
# costs up to a third of an iteration. Here the library keeps it, so that runs differ only in their batch sizes.
ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run: first batch sizes by worker, the policy, passes over the data, iterations between evaluations.

    Every run has its own first weights and order of the data, so that one run does not reveal the noise of another.
    """

    name: str
    seed: int
    sizes: tuple[int, int, int]
    policy: Literal["static", "proportional"] = "static"
    epochs: int = 3
    eval_every: int = 20

    @property
    def sizes_in_words(self) -> str:
        """For example `64, 64, 64`, or `proportional, from 128 each`."""
        return (
            ", ".join(map(str, self.sizes)) if self.policy == "static" else f"{self.policy}, from {self.sizes[0]} each"
        )


RUNS = (
    Recorded("uniform-64", 1, (64, 64, 64), epochs=2, eval_every=40),
    Recorded("uniform-128", 2, (128, 128, 128)),
    Recorded("uneven-448", 3, (256, 128, 64)),
    Recorded("inverse-320", 4, (64, 96, 160), epochs=2),
    Recorded("proportional-384", 5, (128, 128, 128), "proportional"),
    Recorded("proportional-768", 6, (256, 256, 256), "proportional", epochs=4),
    Recorded("uneven-640", 7, (352, 192, 96), epochs=4),
)


def record(folder: Path, console: Console) -> None:
    """Run all of RUNS on this machine, one after the other, then write a recording of each to `folder`.

    Raises:
        SystemExit: a run failed; its output is in the text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dx-calibration-") as temporary:
        runs = Path(temporary)
        for number, run in enumerate(RUNS, start=1):
            console.print(f"recording {run.name}, {number} of {len(RUNS)}", highlight=False)
            write_recording(launched(config_of(run, runs), runs, LIMIT_S), runs / f"{run.name}{SUFFIX}")
        for run in RUNS:
            shutil.copy(runs / f"{run.name}{SUFFIX}", folder)


def config_of(run: Recorded, folder: Path) -> Config:
    """The cluster file of a run."""
    train = ("python", "-m", "benchmarks.workloads.train", "--data", "fashion-mnist", "--model", "cnn", "--lr", "0.02")
    return Config(
        name=run.name,
        run_dir=str(folder),
        seed=run.seed,
        cluster=Cluster(workers=tuple(WorkerSection(batch=b, speed=s) for b, s in zip(run.sizes, SPEEDS, strict=True))),
        batch=BatchBounds(min=32, max=512),
        window=20,
        target_accuracy=0.85,
        policy=PolicySection(name=run.policy),
        metrics=Metrics(tensorboard=False),
        command=(*train, "--epochs", str(run.epochs), "--eval-every", str(run.eval_every), "--seed", str(run.seed)),
        env=ENVIRONMENT,
    )
