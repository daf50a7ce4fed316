"""Training on machines that go and come back: membership beside starting again from checkpoints, by time to a target.

    python -m benchmarks.studies.membership.spot [--json FILE] [--limit-s SECONDS] [--quick]

A CNN learns Fashion-MNIST on four emulated machines, on real BytePS with `policy: ppo`. By a schedule that belongs to
the seed (spot_schedule.py), machines go, half of them with notice and half by `kill -9`, and come back. One contender
is an elastic job, the other one begins again from its newest checkpoint, of which it writes one every 50 iterations
(spot_job.py). Both have the same first weights, order of samples and machines at every moment. A pair takes about three
minutes of a machine that does nothing else.

Every training is a row of spot.csv, written as soon as it ends. The same command goes on and renews the page.
After `--limit-s` none begins. Delete the file to measure anew. `--quick` makes one pair to a nearer target, to show
that the study works, and keeps it in spot-quick.csv.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.one_race import interval
from benchmarks.report.page import markdown, update_page, where, write_csv
from benchmarks.studies.kept_rows import Row, read_rows
from benchmarks.studies.membership.spot_job import CONTENDERS, Outcome, run_job
from benchmarks.studies.study import resumable_arguments
from benchmarks.suite.intervals import paired_ratio, smallest_difference
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.sim.contest.comparison import Array, Estimate
from dynamix_ps.terminal import make_console

PAIRS, BAR = 8, 0.7
TARGET, QUICK_TARGET = 0.85, 0.80  # test accuracy
OURS, THEIRS = CONTENDERS
WHO = {OURS: "membership", THEIRS: "restarts from checkpoints"}
MET, MISSED, OPEN = "met", "missed", "not decided"


@dataclass(frozen=True, slots=True)
class Answer:
    """Membership over restarts, geometric means over pairs.

    Attributes:
        time: to the target.
        samples: to the target; the rest is speed.
        without_starts: times, if starts again took no time.
        shown: the smallest relative difference of times that most studies with so many pairs show.
    """

    pairs: int
    time: Estimate
    samples: Estimate
    without_starts: Estimate
    shown: float
    verdict: str


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="one pair to a nearer target; shows that it works", several=False)
    args = parser.parse_args(arguments)
    stem, pairs, target = ("spot-quick", 1, QUICK_TARGET) if args.quick else ("spot", PAIRS, TARGET)
    args.out.mkdir(parents=True, exist_ok=True)
    rows, left = measure(args.out / f"{stem}.csv", pairs, target, time.monotonic() + args.limit_s)
    found = answer(rows)
    if found is not None:
        write_page(args.out / f"{stem}.md", args.quick, target, rows, found)
    if args.json:
        shown = {"left": left, "answer": found and dataclasses.asdict(found)}
        args.json.write_text(json.dumps(shown, indent=2) + "\n")
    if left:
        make_console().print(f"{left} trainings are left; the same command goes on")
    return 0


def measure(file: Path, pairs: int, target: float, deadline_s: float) -> tuple[list[Row], int]:
    """Make the trainings that the file lacks. Returns all rows, and how many are left.

    Args:
        deadline_s: begin none after this moment of the monotonic clock.
    """
    console, rows = make_console(), read_rows(file)
    ended = {(row["contender"], row["seed"]) for row in rows}
    missing = [(name, seed) for seed in range(pairs) for name in _turn(seed) if (name, str(seed)) not in ended]
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for done, (name, seed) in enumerate(missing):
            if time.monotonic() > deadline_s:
                return rows, len(missing) - done
            with tempfile.TemporaryDirectory(prefix="dx-spot-") as folder:
                outcome = run_job(name, seed, target, Path(folder))
            rows.append(row_of(name, seed, outcome))
            write_csv(file, rows)
            console.print(f"[{done + 1}/{len(missing)}] {WHO[name]}, seed {seed}: {outcome.target_s:.1f} s")
    return rows, 0


def _turn(seed: int) -> tuple[str, ...]:
    """Each is the first of a pair as often: the machine may become slower."""
    return (OURS, THEIRS) if seed % 2 == 0 else (THEIRS, OURS)


def row_of(name: str, seed: int, outcome: Outcome) -> Row:
    """What the table keeps of a training."""
    figures: dict[str, Any] = {
        "contender": name,
        "seed": seed,
        "target_s": f"{outcome.target_s:.2f}",
        "samples": f"{outcome.samples:.0f}",
        "notices": outcome.notices,
        "kills": outcome.kills,
        "backs": outcome.backs,
        "starts": outcome.starts,
        "restarting_s": f"{outcome.restarting_s:.2f}",
        "repeated": outcome.repeated,
        "machine": where(),
    }
    return {key: str(value) for key, value in figures.items()}


def answer(rows: Sequence[Row]) -> Answer | None:
    """From the seeds that both contenders have; None without one."""
    of = {name: {row["seed"]: row for row in rows if row["contender"] == name} for name in CONTENDERS}
    seeds = sorted(of[OURS].keys() & of[THEIRS].keys(), key=int)
    if not seeds:
        return None

    def values(name: str, column: str) -> Array:
        return np.array([float(of[name][seed][column]) for seed in seeds])

    ours_s, theirs_s = (values(name, "target_s") for name in CONTENDERS)
    time_ratio = paired_ratio(ours_s, theirs_s)
    decided = len(seeds) >= PAIRS
    verdict = MET if time_ratio.high <= BAR else MISSED if time_ratio.low > BAR else OPEN
    return Answer(
        pairs=len(seeds),
        time=time_ratio,
        samples=paired_ratio(values(OURS, "samples"), values(THEIRS, "samples")),
        without_starts=paired_ratio(ours_s, theirs_s - values(THEIRS, "restarting_s")),
        shown=smallest_difference([dict(enumerate(np.log(ours_s / theirs_s).tolist()))]),
        verdict=verdict if decided else OPEN,
    )


def write_page(page: Path, quick: bool, target: float, rows: Sequence[Row], found: Answer) -> None:
    """Renew the figures of the page. Raises UsageError if it cannot be written."""
    machines = " and ".join(sorted({row["machine"] for row in rows}))
    call = f"`python -m benchmarks.studies.membership.spot{' --quick' * quick}`"
    told = f"{call}: {len(rows)} trainings to {100 * target:g} % test accuracy on {machines}."
    shown = f"{100 * found.shown:.2g} %" if math.isfinite(found.shown) else "-"
    ratios = {
        "pairs": str(found.pairs),
        "time to target": interval(found.time),
        "bar": f"{BAR:g}",
        "samples to target": interval(found.samples),
        "time, if starts took none": interval(found.without_starts),
        "smallest difference that so many pairs show": shown,
        "verdict": f"**{found.verdict}**",
    }
    blocks = (told, "Membership over restarts:", markdown([ratios]), "Means:", markdown(_means(rows)))
    update_page(page, "\n\n".join(blocks) + "\n")


def _means(rows: Sequence[Row]) -> list[dict[str, str]]:
    def mean(name: str, column: str) -> float:
        return float(np.mean([float(row[column]) for row in rows if row["contender"] == name]))

    columns = {
        "s to target": ("target_s", "{:.1f}"),
        "samples": ("samples", "{:,.0f}"),
        "notices": ("notices", "{:.1f}"),
        "kills": ("kills", "{:.1f}"),
        "machines back": ("backs", "{:.1f}"),
        "starts again": ("starts", "{:.1f}"),
        "s of them": ("restarting_s", "{:.1f}"),
        "iterations made again": ("repeated", "{:.0f}"),
    }
    there = [name for name in CONTENDERS if any(row["contender"] == name for row in rows)]
    return [
        {"contender": WHO[name]} | {title: form.format(mean(name, key)) for title, (key, form) in columns.items()}
        for name in there
    ]


if __name__ == "__main__":
    sys.exit(main())
