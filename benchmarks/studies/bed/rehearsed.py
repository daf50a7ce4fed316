"""Whether rehearsals come to the times of the bed: cells of the grid `network`, rehearsed with their own seeds.

    python -m benchmarks.studies.bed.rehearsed --json FILE [--scenario NAME ...] [--contender NAME ...] [--seeds N]

The cluster's times come from the scenario's cells with fixed sizes alone, converted to the speed that the machine had
in the cells to compare with. clock.py has scenarios with other links. A rehearsal takes some 40 s of one core.
`ratio` is the median over seeds of the rehearsed time to the target over the median of the measured one; within
TIME_BAR of 1. `clock_ratio` is the same of the seconds per sample until then: what the cost model is responsible for,
without the luck of learning.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.suite.cell import config_of
from benchmarks.suite.contenders import contender
from benchmarks.suite.placement import Scheduled
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.simulated import computing_times, median_speed, simulated
from benchmarks.suite.tables import read_tables
from benchmarks.suite.workloads import load_workload
from dynamix_ps.rehearsal.outcome import EvaluationTarget
from dynamix_ps.rehearsal.study import Study, StudyRun
from dynamix_ps.run_record.evaluations import ACCURACY, TargetReached

GRID = Path(__file__).parents[2] / "results" / "network"
WORKLOAD = "fashion-cnn-short"
SCENARIOS, CONTENDERS = ("slow-link", "server-ingress", "lossy-link"), ("ppo", "goodput")
TIME_BAR = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--contender", action="append", help=f"default: {', '.join(CONTENDERS)}")
    parser.add_argument("--seeds", type=int, default=5, help="at most so many of the grid's")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="rehearsals at a time")
    args = parser.parse_args()
    figures = [
        measure(scenario, who, args.seeds, args.jobs)
        for scenario in args.scenario or SCENARIOS
        for who in args.contender or CONTENDERS
    ]
    table = Table(title="time to the target, medians")
    for column in ("scenario", "contender", "seeds", "measured s", "rehearsed s", "ratio", "clock"):
        table.add_column(column, justify="right")
    for one in figures:
        shown = (
            f"{one['measured_s']:.1f}",
            f"{one['rehearsed_s']:.1f}",
            f"{one['ratio']:.3f}",
            f"{one['clock_ratio']:.3f}",
        )
        table.add_row(one["scenario"], one["contender"], str(len(one["seeds"])), *shown)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"cells": figures, "bar": TIME_BAR}, indent=2) + "\n")


def measure(scenario: str, who: str, seeds: int, jobs: int) -> dict[str, Any]:
    """The seeds of one contender in one scenario, measured and rehearsed."""
    workload, bed = load_workload(WORKLOAD), load_scenario(scenario)
    cells = [cell for cell in read_tables(GRID) if cell.name.scenario == scenario]
    target = EvaluationTarget(ACCURACY, workload.thresholds[-1], higher_is_better=True)
    compared = {
        cell.name.seed: (cell, arrival)
        for cell in cells
        if cell.name.contender == who and (arrival := cell.arrival(target.value)) is not None
    }
    chosen = sorted(compared)[:seeds]
    measured = [compared[seed][1] for seed in chosen]
    gflop_per_s = median_speed(compared[seed][0] for seed in chosen)
    core = computing_times((cell for cell in cells if cell.name.contender.startswith("static-")), bed.cores)
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        name = CellName(scenario, WORKLOAD, who, 0)
        config = config_of(name, bed, workload, contender(who), Path(folder), Scheduled(bed, workload.limit_s))
        command = (*workload.command, "--seed", "{seed}")
        cluster = simulated(bed, core.at(gflop_per_s), workload.limit_s)
        study = Study(Path(folder), config, [cluster], [config.policy.name], chosen, command)
        study.run_missing(jobs, lambda done: None)
        outcomes = study.outcomes()
        reached = [outcomes[StudyRun(cluster.name, config.policy.name, seed)].reached(target) for seed in chosen]
    rehearsed = [one or TargetReached(workload.limit_s, math.nan) for one in reached]
    measured_s, rehearsed_s = (statistics.median(one.time_s for one in some) for some in (measured, rehearsed))
    clocks = [median_clock(some) for some in (rehearsed, measured)]
    return {
        "scenario": scenario,
        "contender": who,
        "core": core._asdict(),
        "seeds": chosen,
        "measured_s": measured_s,
        "rehearsed_s": rehearsed_s,
        "ratio": rehearsed_s / measured_s,
        "clock_ratio": clocks[0] / clocks[1],
        "machine_gflop_per_s": gflop_per_s,
        "of_seeds": [mine.time_s / one.time_s for mine, one in zip(rehearsed, measured, strict=True)],
    }


def median_clock(arrivals: Sequence[TargetReached]) -> float:
    """Seconds per sample until the target, median of the runs that arrive; NaN where none does."""
    return float(np.nanmedian([one.time_s / one.samples for one in arrivals]))


if __name__ == "__main__":
    main()
