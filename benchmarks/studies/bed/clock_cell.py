"""One run of the check of the clock, on real BytePS: what its workload is, and who takes part.

    python -m benchmarks.studies.bed.clock_cell h-level-4 ppo 1 --until-s 45 --out FOLDER

It is a cell of the suite (benchmarks/suite/cell.py) that ends when it has trained for as long as the clock needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path

from benchmarks.studies.trainings import untrained
from benchmarks.suite.cell import run_cell, run_folder
from benchmarks.suite.contenders import CONTENDERS, Contender, contender
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.workloads import Workload, load_workload
from dynamix_ps.exit_codes import exit_code_of

WORKLOAD = "fashion-cnn-clock"
MODEL = "model"
MOST_PER_S = 5000  # samples
BETWEEN_S = 5.0  # two evaluations are never farther apart: 4,000 samples at 800 per second


def workload_of(until_s: float) -> Workload:
    """The one of the published grids, for the first `until_s` seconds of training.

    Nobody asks how well it learns, so an evaluation is short. There are more samples than any contender takes in that
    time.
    """
    workload = load_workload("fashion-cnn-short")
    changed = {
        "epochs": math.ceil(MOST_PER_S * until_s / workload.train_samples),
        "most_epochs": None,
        "eval_samples": 4000,
        "test_samples": 500,
        "limit_s": until_s + BETWEEN_S,
    }
    return workload.model_copy(update=changed)


def contender_of(name: str, folder: Path) -> Contender:
    """One of the suite's, or the model of the cluster behind `ppo` alone, whose policy file comes into the folder."""
    if name != MODEL:
        return contender(name)
    what = "the model of the cluster behind `ppo`, alone: an untrained policy follows its advice"
    return dataclasses.replace(CONTENDERS["ppo"], policy=untrained(folder / f"{MODEL}.npz"), what=what)


def command_of(cell: CellName, out: Path, until_s: float) -> tuple[str, ...]:
    """The process that runs the cell and writes its result below `out`."""
    words = (cell.scenario, cell.contender, str(cell.seed), "--until-s", str(until_s), "--out", str(out))
    return (sys.executable, "-m", "benchmarks.studies.bed.clock_cell", *words)


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("contender")
    parser.add_argument("seed", type=int)
    parser.add_argument("--until-s", type=float, required=True, help="seconds of training that count")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the result")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    name = CellName(args.scenario, WORKLOAD, args.contender, args.seed)
    with run_folder() as base:
        chosen = contender_of(args.contender, base)
        return run_cell(name, load_scenario(args.scenario), workload_of(args.until_s), chosen, base, args.out)


if __name__ == "__main__":
    sys.exit(main())
