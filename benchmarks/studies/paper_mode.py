"""What the agent of DYNAMIX comes to under two readings of its reward, rehearsed: real gradients, simulated clock.

    python -m benchmarks.studies.paper_mode --json FILE [--quick] [--limit-s S]

The paper's reward subtracts T_iter and does not say in which unit. Here it is the time of an iteration, or that of a
sample. The agents of both readings meet the static sizes of the paper and the best one, with the learning rate tuned
and a quarter of it. The clusters: equal workers; mixed ones; equal ones whose iterations take about the same time at
all sizes, as on a GPU with a small model. `ppo` is there for reference. The policy of the first reading ships; that of
the second is trained here if its file is missing, and the same seed gives the same weights.

Every run is a row of paper-mode/cells.csv, written as soon as it ends, and the same command goes on from there. The
page is made from all rows, so it grows with them. `--quick` runs the first seed of one workload alone. Delete the rows
after a change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import RESULTS, draw, update_page, where
from benchmarks.report.paper_mode import (
    CONTENDERS,
    PER_ITERATION,
    PER_SAMPLE,
    WORKERS,
    Group,
    draw_times,
    figures,
    group_of,
    tables,
)
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, Workplace, cell_of, outcome_of, run_missing
from benchmarks.studies.trainings import Training, train_all
from benchmarks.suite.contenders import NO_SAFETY_NET, Contender, contender
from benchmarks.suite.workloads import Workload, load_workload
from dynamix_ps.config.schema import Policy, Ppo
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.policy.learned.rewards import PaperReward
from dynamix_ps.policy.ppo.policy_file import load_policy, save_policy
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Worker
from dynamix_ps.sim.training.trainer import paper_settings
from dynamix_ps.terminal import make_console, progress_bar

# VGG11 of an eighth of the width, and ResNet8; shortened to 80,000 samples of CIFAR-10
WORKLOADS: Mapping[str, Mapping[str, Any]] = {"cifar-vgg11": {"model": "vgg11-thin"}, "cifar-resnet": {}}
SHORTENED = {"epochs": 4, "eval_samples": 8000, "test_samples": 2000}
CLUSTERS = (
    load_scenario("homogeneous").with_workers(WORKERS),  # an iteration's fixed time is that of 50 samples
    load_scenario("h-level-8").with_workers(WORKERS),
    Scenario(name="overhead", workers=(Worker(count=WORKERS, fixed_s=0.02, per_sample_s=2e-5),)),  # of 1,000 samples
)
RATES = (1.0, 0.25)  # of the workload's, which was tuned
SEEDS = (1, 2, 3, 4)
FIRST_SIZE = 64  # of every worker
READING = paper_settings(reward=PaperReward(time="per_sample"), total_windows=300_000)
EXPECTED_S = 70.0  # of one run and one core, where none has ended yet


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell and the group that it belongs to."""

    cell: Cell
    rate: float
    contender: str


def planned(file: Path) -> Iterator[Planned]:
    """All cells, seed by seed and within a seed group by group. `file` is the policy of the second reading."""
    for seed in SEEDS:
        for workload in WORKLOADS:
            for scenario in CLUSTERS:
                place = Workplace(shortened(workload), scenario, (FIRST_SIZE,) * WORKERS)
                for rate in RATES:
                    for one in CONTENDERS:
                        name = Name(workload, scenario.name, f"{one}, rate x{rate:g}", seed)
                        chosen = dataclasses.replace(contender_of(one, file), lr_factor=rate)
                        yield Planned(cell_of(name, place, chosen), rate, one)


def shortened(name: str) -> Workload:
    """A workload of the suite with fewer samples, and the bounds of the paper's sizes."""
    low, high = PAPER_BOUNDS
    return load_workload(name).model_copy(update={**SHORTENED, **WORKLOADS[name], "min": low, "max": high})


def contender_of(name: str, file: Path) -> Contender:
    """One of CONTENDERS; those of the paper without a safety net."""
    if name == PER_ITERATION:
        return contender("ppo-paper")
    if name == PER_SAMPLE:
        ppo = Ppo(space="paper", time="per_sample", file=str(file.absolute()))
        return dataclasses.replace(contender("ppo-paper"), policy=Policy(name="ppo", ppo=ppo, safety=NO_SAFETY_NET))
    return contender(name)


def train_reading(file: Path) -> None:
    """Train the policy of the second reading, with a fixed seed, and save what acting needs of it."""
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        training = Training("per-sample", READING)
        train_all([training], Path(folder))
        stored = load_policy(training.file(Path(folder)), None)
    networks = {name: dataclasses.replace(weights, adam=None) for name, weights in stored.networks.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_policy(file, dataclasses.replace(stored, networks=networks))


def groups(among: Sequence[Planned], table: Table) -> list[Group]:
    """Those of which at least one seed is complete."""
    rows = table.rows([one.cell for one in among])
    known = [one for one in among if one.cell.name in rows]
    found = []
    for key in dict.fromkeys((one.cell.name.workload, one.cell.name.scenario, one.rate) for one in known):
        outcomes = {
            (one.contender, one.cell.name.seed): outcome_of(rows[one.cell.name])
            for one in known
            if (one.cell.name.workload, one.cell.name.scenario, one.rate) == key
        }
        if group := group_of(*key, outcomes):
            found.append(group)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="the first seed of one workload alone")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: %(default)s)")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its runs end, too
    began_s, console = time.monotonic(), make_console()
    file = args.out / "paper-mode" / "per-sample.npz"
    if not file.exists():
        console.print(f"training {file}: {READING.total_windows:,} windows of random clusters")
        train_reading(file)
    everything, table = list(planned(file)), Table(args.out / "paper-mode" / "cells.csv")
    chosen = [one.cell for one in everything if not args.quick or _quick(one.cell.name)]
    rows = table.rows(chosen)
    each_s = statistics.mean(float(row["took_s"]) for row in rows.values()) if rows else EXPECTED_S
    left = len(chosen) - len(rows)
    console.print(f"{left} of {len(chosen)} runs are left: about {left * each_s / args.jobs / 60:.0f} minutes")
    with progress_bar(console) as bar:
        task = bar.add_task("rehearsed runs", total=len(chosen), completed=len(rows))
        limit_s = args.limit_s - (time.monotonic() - began_s)
        run_missing(chosen, table, args.jobs, limit_s, lambda done: bar.update(task, completed=done))
    write_page(args.out, everything, table, args.json)
    return 0


def write_page(out: Path, everything: Sequence[Planned], table: Table, json_file: Path | None) -> None:
    """The page, its picture and the figures, from the rows that there are."""
    known, rows = groups(everything, table), table.rows([one.cell for one in everything])
    if not known:
        print("no group has a complete seed yet; the same command goes on")
        return
    took_s = sum(float(row["took_s"]) for row in rows.values())
    cells = f"{len(rows)} of {len(everything)} cells"
    told = f"`python -m benchmarks.studies.paper_mode`: {cells}, {took_s:,.0f} s of one core on {where()}. Rehearsed."
    update_page(out / "paper-mode.md", f"{told}\n\n{tables(known)}\n")
    draw(out / "paper-mode.png", lambda figure: draw_times(figure, known))
    print(told)
    if json_file:
        shown = {"cells": len(rows), "of": len(everything), "groups": figures(known)}
        json_file.write_text(json.dumps(shown, indent=2) + "\n")


def _quick(name: Name) -> bool:
    return name.workload == next(iter(WORKLOADS)) and name.seed == SEEDS[0]


if __name__ == "__main__":
    sys.exit(main())
