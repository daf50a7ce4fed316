"""One `dynamix launch` of the spot study: on which machines it runs, and what it has written so far."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.studies.launching import roles_of
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Elastic, Metrics, PolicySection, WorkerSection
from dynamix_ps.run_record.evaluations import ACCURACY
from dynamix_ps.run_record.iteration_mark import read_mark
from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.run_folder import RunFolder

SAMPLE_S = (0.0015, 0.0015, 0.003, 0.003)  # what the machines take for a sample: two are half as fast
BATCH, CHECKPOINT_EVERY = 64, 50
END_S = 30.0


class Point(NamedTuple):
    """An evaluation: Unix time, samples of all workers by then, accuracy."""

    at_s: float
    samples: float
    accuracy: float


def config_of(folder: Path, seed: int, machines: tuple[int, ...], least: int | None) -> Config:
    """The cluster file, with which all that is written comes to `folder`.

    Args:
        machines: one worker each.
        least: workers with which an elastic job goes on; None: it is none.
    """
    sample_s = (str(SAMPLE_S[machine]) for machine in machines)
    return Config(
        name="spot",
        run_dir=str(folder / "runs"),
        seed=seed,
        cluster=Cluster(workers=(WorkerSection(batch=BATCH),) * len(machines)),
        batch=BatchBounds(min=16, max=512),
        window=10,
        lr_rule="sqrt",
        elastic=Elastic(min_workers=least),
        checkpoint_every=CHECKPOINT_EVERY,
        policy=PolicySection(name="ppo"),
        metrics=Metrics(network="off", tensorboard=False, prometheus_port=None),
        env={"OMP_NUM_THREADS": "1"},
        command=(
            *("python", "-m", "benchmarks.studies.membership.spot_worker", "--seed", str(seed), "--sample-s"),
            *sample_s,
        ),
    )


class Launch:
    """Starts at once.

    Args:
        folder: of this launch alone; it is made.
        resume: checkpoint to go on from.

    Attributes:
        began_s: Unix time at which all its workers had begun to train; None before.
        points: its evaluations.
        entered: ranks of workers that have entered since the last look.
        iteration: the one that it began with.
    """

    def __init__(
        self, folder: Path, seed: int, machines: tuple[int, ...], least: int | None, resume: Path | None = None
    ) -> None:
        folder.mkdir()
        file = folder / "cluster.yaml"
        file.write_text(dump_config(config_of(folder, seed, machines, least)))
        self.machines, self._folder = machines, folder
        self.began_s: float | None = None
        self.points: list[Point] = []
        self.entered: set[int] = set()
        self.iteration = 0
        self._ended_in_order = False
        self._began_s: dict[int, float] = {}  # by rank
        self._tails: list[JsonLinesTail] = []
        words = () if resume is None else ("--resume", str(resume))
        command = [sys.executable, "-m", "dynamix_ps", "launch", "-c", str(file), *words]
        with (folder / "output").open("wb") as out:
            self._process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    @property
    def over(self) -> bool:
        """Whether the launcher has ended."""
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """Its end."""
        return (self._folder / "output").read_text(errors="replace")[-3000:]

    @property
    def run(self) -> RunFolder | None:
        """None before there is one."""
        latest = self._folder / "runs" / "latest"
        return RunFolder(latest.resolve()) if latest.exists() else None

    @property
    def checkpoint(self) -> Path | None:
        """The newest one."""
        return None if self.run is None else self.run.newest_checkpoint()

    @property
    def reached(self) -> int:
        """The iteration in which its workers are, or were last."""
        run, ranks = self.run, range(len(self.machines))
        marks = [] if run is None else [read_mark(run.iteration_file(rank)) or 0 for rank in ranks]
        return max(marks, default=0)

    def look(self) -> None:
        """Take in what its workers have written since the last time."""
        run = self.run
        if run is not None and not self._tails:
            self._tails = [JsonLinesTail(run.worker_file(rank)) for rank in range(len(self.machines))]
        self.entered.clear()
        for rank, tail in enumerate(self._tails):
            for line in tail.read():
                self._take_in(rank, line)
        self.points.sort()

    def _take_in(self, rank: int, line: Line) -> None:
        if line["kind"] == "evaluation":
            self.points.append(Point(line["time_s"], line["trained_samples"], line["values"][ACCURACY]))
        elif line["kind"] == "workers_entered":
            self.entered.update(line["entered"])
        elif line["kind"] == "started" and self.began_s is None:
            self.iteration = line["iteration"]
            self._began_s[rank] = line["time_s"]
            if len(self._began_s) == len(self.machines):
                self.began_s = max(self._began_s.values())

    def strike(self, machine: int, number: signal.Signals) -> bool:
        """Send a signal to the worker on this machine. Returns whether there is one."""
        with suppress(ValueError, KeyError, ProcessLookupError, psutil.NoSuchProcess):
            os.kill(roles_of(self._process)[f"worker-{self.machines.index(machine)}"].pid, number)
            return True
        return False

    def end(self) -> None:
        """Tell it once to end in order, with a checkpoint. Returns at once."""
        if not self._ended_in_order and not self.over:
            self._ended_in_order = True
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End it, and wait until nothing is left of it."""
        self.end()
        with suppress(psutil.TimeoutExpired):
            self._process.wait(END_S)
        if not self.over:
            self._process.kill()  # all that it started ends with it
            self._process.wait()
