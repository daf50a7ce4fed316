"""Cells of a study that rehearses: each is one run, and leaves a row in a table. Real gradients, simulated clock.

A study lists its cells and calls `run_missing`. What has ended is in the table, so a study that is cut off goes on, and
so does one to which cells are added. A row counts only for the very settings that it was run with: with another cluster
file, scenario, command or policy file the cell runs again. Code is not among the settings: delete the table after a
change of the simulator, of a policy's code or of the training.

A row keeps the whole curve of evaluations, so targets can be chosen afterwards.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.suite.cell import ENVIRONMENT
from benchmarks.suite.contenders import Contender
from benchmarks.suite.workloads import Workload
from dynamix_ps.config.policies import is_target
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Metrics, WorkerSection
from dynamix_ps.policy.learned.policy import PRETRAINED
from dynamix_ps.rehearsal.outcome import Evaluated, RehearsalOutcome
from dynamix_ps.rehearsal.processes import some_at_a_time
from dynamix_ps.rehearsal.script_run import SEED
from dynamix_ps.rehearsal.study import Study, StudyRun
from dynamix_ps.run_record.evaluations import higher_is_better
from dynamix_ps.sim.scenario.load import Scenario

COLUMNS = (
    "workload", "scenario", "contender", "seed", "key", "took_s",
    "train_s", "iterations", "samples", "plans", "passes", "diverged", "curve",
)  # fmt: skip

Row = Mapping[str, str]


class Name(NamedTuple):
    """Of a cell: what tells it from the others of its table."""

    workload: str
    scenario: str
    contender: str
    seed: int


@dataclass(frozen=True, eq=False)  # hashed by identity: settings have no hash
class Cell:
    """One run: its name, and what it comes from. `config` has the seed, the policy and the command."""

    name: Name
    config: Config
    scenario: Scenario

    @cached_property
    def key(self) -> str:
        """Of all that decides the run, wherever its files lie."""
        ppo = self.config.policy.ppo
        without_paths = self.config.policy.model_copy(update={"ppo": ppo.model_copy(update={"file": None})})
        config = self.config.model_copy(update={"policy": without_paths, "run_dir": ""})
        text = "".join(one.model_dump_json(exclude_defaults=True) for one in (config, self.scenario))
        if self.config.policy.name == "ppo" or is_target(self.config.policy.name):  # which may ask ppo
            text += _digest(PRETRAINED / f"{ppo.space}.npz" if ppo.file is None else Path(ppo.file))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache
def _digest(file: Path) -> str:
    kept = digest_file(file)
    return kept.read_text(encoding="utf-8").strip() if kept.exists() else hashlib.sha256(file.read_bytes()).hexdigest()


def digest_file(file: Path) -> Path:
    """Has the digest of the weights of a policy that a study trains again where its file is missing."""
    return file.with_suffix(".sha256")


class Workplace(NamedTuple):
    """What a contender trains, and where. `sizes`: the first ones, for whose sum the learning rate is tuned."""

    workload: Workload
    scenario: Scenario
    sizes: tuple[int, ...]


def cell_of(name: Name, place: Workplace, chosen: Contender) -> Cell:
    """The cell of a contender on a cluster of as many workers as there are first sizes."""
    workload = place.workload
    policy = chosen.policy
    if chosen.batch is not None:
        policy = policy.model_copy(update={"sizes": (chosen.batch,) * len(place.sizes)})
    speeds = [worker.quota / worker.per_sample_s for worker in place.scenario.each_worker]
    first = chosen.first_sizes(place.sizes, speeds, workload.min, workload.max)
    config = Config(
        name="rehearsed",
        seed=name.seed,
        comm=workload.comm,
        cluster=Cluster(workers=tuple(WorkerSection(batch=size) for size in first)),
        batch=BatchBounds(unit=workload.unit, min=workload.min, max=workload.max),
        window=workload.window,
        lr_rule=workload.lr_rule,
        policy=policy,
        metrics=Metrics(tensorboard=False, prometheus_port=None),
        command=(*workload.command, "--lr-factor", str(chosen.lr_factor), "--seed", SEED),
        env=ENVIRONMENT,
    )
    return Cell(name, config, place.scenario)


class Table:
    """The rows of the cells that have ended, in a CSV file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: list[Row] = []
        if file.exists():
            with file.open(newline="", encoding="utf-8") as lines:
                self._rows = list(csv.DictReader(lines))

    def rows(self, cells: Collection[Cell]) -> dict[Name, Row]:
        """Of those cells that have ended with their present settings."""
        by_key = {(_name(row), row["key"]): row for row in self._rows}
        return {cell.name: by_key[cell.name, cell.key] for cell in cells if (cell.name, cell.key) in by_key}

    def outside(self, cells: Collection[Cell]) -> int:
        """How many rows are of none of these cells, or were run with other settings. They count nowhere."""
        return len(self._rows) - len(self.rows(cells))

    def add(self, row: Row) -> None:
        """In place of an older row of this name. Raises OSError."""
        self._rows = [*(one for one in self._rows if _name(one) != _name(row)), row]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        with partial.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(partial, self._file)


def run_missing(
    cells: Sequence[Cell],
    table: Table,
    jobs: int,
    limit_s: float = math.inf,
    on_progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Run the cells that have no row, `jobs` at a time, in their order. Returns how many are left.

    Args:
        limit_s: begin no cell after so many seconds.
        on_progress: called several times a second with the number of cells that have ended.

    Raises:
        JobFailed: a run failed in another way than by an infinite loss; the others are stopped.
    """
    ended = set(table.rows(cells))
    missing = [cell for cell in cells if cell.name not in ended]
    began_s, started_s = time.monotonic(), dict[Name, float]()
    with tempfile.TemporaryDirectory(prefix="dynamix-") as base:

        def in_time() -> Iterator[Cell]:
            for cell in missing:
                if time.monotonic() - began_s > limit_s:
                    return
                yield cell

        def start(cell: Cell) -> subprocess.Popen[bytes]:
            started_s[cell.name] = time.monotonic()
            study, run = _study(Path(base), cell)
            return study.start(run)

        processes = some_at_a_time(in_time(), jobs, start, lambda running: on_progress(len(ended)))
        with closing(processes):
            for cell, exit_code in processes:
                study, run = _study(Path(base), cell)
                study.check(run, exit_code)
                took_s = time.monotonic() - started_s[cell.name]
                table.add(row_of(cell, study.outcomes()[run], took_s))
                ended.add(cell.name)
                shutil.rmtree(study.folder)
    return len(cells) - len(ended)


def _study(base: Path, cell: Cell) -> tuple[Study, StudyRun]:
    """The cell as a study of one run."""
    policy = cell.config.policy.name
    folder = base / hashlib.sha256(str(cell.name).encode()).hexdigest()[:12]
    study = Study(folder, cell.config, [cell.scenario], [policy], [cell.name.seed], cell.config.command)
    return study, study.runs[0]


def row_of(cell: Cell, outcome: RehearsalOutcome, took_s: float) -> Row:
    """What the table keeps of a run."""
    figures = {
        "took_s": f"{took_s:.1f}",
        "train_s": f"{outcome.train_s:.4f}",
        "iterations": str(outcome.iterations),
        "samples": str(outcome.curve[-1].samples if outcome.curve else 0),
        "plans": str(outcome.plans),
        "passes": str(outcome.passes),
        "diverged": str(int(outcome.diverged)),
        "curve": _curve_text(outcome),
    }
    return {name: str(value) for name, value in cell.name._asdict().items()} | {"key": cell.key} | figures


def outcome_of(row: Row) -> RehearsalOutcome:
    """The run as it was."""
    columns = json.loads(row["curve"])
    times_s, samples = columns.pop("time_s"), columns.pop("samples")
    points = zip(times_s, samples, zip(*columns.values(), strict=True), strict=True)
    return RehearsalOutcome(
        train_s=float(row["train_s"]),
        iterations=int(row["iterations"]),
        plans=int(row["plans"]),
        passes=int(row["passes"]),
        diverged=row["diverged"] == "1",
        curve=tuple(
            Evaluated(time_s, count, dict(zip(columns, values, strict=True))) for time_s, count, values in points
        ),
        higher_is_better={name: better for name in columns if (better := higher_is_better(name)) is not None},
    )


def _curve_text(outcome: RehearsalOutcome) -> str:
    """Evaluations as columns, in JSON. An evaluation of averaged weights is one with that of the weights before it."""
    merged: dict[int, tuple[float, dict[str, float]]] = {}
    for time_s, samples, values in outcome.curve:
        merged.setdefault(samples, (time_s, {}))[1].update(values)
    names = list(dict.fromkeys(name for _, values in merged.values() for name in values))
    columns: dict[str, list[float]] = {
        "time_s": [round(time_s, 4) for time_s, _ in merged.values()],
        "samples": list(merged),
    }
    columns |= {name: [_rounded(values.get(name, math.nan)) for _, values in merged.values()] for name in names}
    return json.dumps(columns, separators=(",", ":"))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _name(row: Row) -> Name:
    return Name(row["workload"], row["scenario"], row["contender"], int(row["seed"]))
