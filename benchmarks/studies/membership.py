"""What it costs those that stay when a worker of a job goes: the time to their next step, and steps lost.

    python -m benchmarks.studies.membership [--json FILE] [--limit-s SECONDS] [--quick]

Each run is a job of its own under `dynamix launch`: four workers and two servers on real BytePS, all on this machine,
train a model of 37 MB. In the middle of a backward pass something happens to one of the workers, to each of the four in
turn. What counts is the time from then until all others have completed their next step, beyond one ordinary iteration
of the same run (benchmarks/studies/membership_job.py). 20 runs of each case take about a quarter of an hour of a
machine that does nothing else.

Every run is a row of membership.csv, written as soon as it ends. The same command goes on from there and renews the
page. After `--limit-s` no run begins. Delete the file to measure anew. `--quick` makes one run of each case, to show
that the study works, and keeps it in membership-quick.csv.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.membership_job import WORKERS, Outcome, run_job
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console

RUNS = 20
MET, MISSED, OPEN = "met", "missed", "not decided"

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to a worker, and how long the others may wait for it beyond one iteration."""

    key: str
    what: str
    signal: signal.Signals
    median_bar_s: float
    p95_bar_s: float


LEASE_S = Timeouts().lease_s  # of the jobs
CASES = (
    Case("kill", "`kill -9` of one of four workers", signal.SIGKILL, median_bar_s=1.0, p95_bar_s=2.0),
    Case("stop", "one is stopped for ever", signal.SIGSTOP, median_bar_s=LEASE_S + 1, p95_bar_s=LEASE_S + 1),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """All runs of a case. Seconds are those beyond one ordinary iteration."""

    case: str
    runs: int
    iteration_s: float
    median_s: float
    p95_s: float
    lost: int
    repeated: int
    equal: bool
    verdict: str


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="too few runs for figures; shows that it works")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    args = parser.parse_args(arguments)
    stem, runs = ("membership-quick", 1) if args.quick else ("membership", RUNS)
    args.out.mkdir(parents=True, exist_ok=True)
    rows, left = measure(args.out / f"{stem}.csv", runs, time.monotonic() + args.limit_s)
    found = findings(rows, runs)
    if found:
        write_page(args.out / f"{stem}.md", args.quick, rows, found)
    if args.json:
        shown = {"left": left, "cases": [dataclasses.asdict(one) for one in found]}
        args.json.write_text(json.dumps(shown, indent=2) + "\n")
    if left:
        make_console().print(f"{left} runs are left; the same command goes on")
    return 0


def measure(file: Path, runs: int, deadline_s: float) -> tuple[list[Row], int]:
    """Make the runs that the file lacks. Returns all rows, and how many runs are left.

    Args:
        runs: of each case.
        deadline_s: begin none after this moment of the monotonic clock.
    """
    console, rows = make_console(), read(file)
    missing = [(case, run) for run in range(runs) for case in CASES if (case.key, str(run)) not in _ended(rows)]
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for done, (case, run) in enumerate(missing):
            if time.monotonic() > deadline_s:
                return rows, len(missing) - done
            rows.append(row_of(case, run, run_job(case.signal, struck=run % WORKERS)))
            write_csv(file, rows)
            beyond_s = rows[-1]["beyond_s"]
            console.print(f"[{done + 1}/{len(missing)}] {case.key} {run}: the next step came {beyond_s} s late")
    return rows, 0


def read(file: Path) -> list[Row]:
    """The runs that have ended; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _ended(rows: Sequence[Row]) -> set[tuple[str, str]]:
    return {(row["case"], row["run"]) for row in rows}


def row_of(case: Case, run: int, outcome: Outcome) -> Row:
    """What the table keeps of a run."""
    figures: dict[str, Any] = {
        "case": case.key,
        "run": run,
        "worker": run % WORKERS,
        "iteration_s": f"{outcome.iteration_s:.4f}",
        "next_step_s": f"{outcome.next_step_s:.4f}",
        "beyond_s": f"{outcome.beyond_s:.4f}",
        "lost": outcome.lost,
        "repeated": outcome.repeated,
        "equal": int(outcome.equal),
        "machine": where(),
    }
    return {name: str(value) for name, value in figures.items()}


def findings(rows: Sequence[Row], runs: int) -> list[Finding]:
    """Of the cases that have a run. A case with fewer than `runs` of them has no verdict."""
    return [_finding(case, mine, runs) for case in CASES if (mine := [row for row in rows if row["case"] == case.key])]


def _finding(case: Case, rows: Sequence[Row], runs: int) -> Finding:
    beyond_s = sorted(float(row["beyond_s"]) for row in rows)
    median_s, p95_s = statistics.median(beyond_s), beyond_s[math.ceil(0.95 * len(beyond_s)) - 1]
    lost, repeated = (sum(int(row[name]) for row in rows) for name in ("lost", "repeated"))
    equal = all(row["equal"] == "1" for row in rows)
    right = median_s <= case.median_bar_s and p95_s <= case.p95_bar_s and not lost and not repeated and equal
    verdict = (MET if right else MISSED) if len(rows) >= runs else OPEN
    iteration_s = statistics.median(float(row["iteration_s"]) for row in rows)
    return Finding(case.key, len(rows), iteration_s, median_s, p95_s, lost, repeated, equal, verdict)


def write_page(page: Path, quick: bool, rows: Sequence[Row], found: Sequence[Finding]) -> None:
    """Renew the figures of the page. Raises UsageError if it cannot be written."""
    cases = {case.key: case for case in CASES}
    machines = " and ".join(sorted({row["machine"] for row in rows}))
    told = f"`python -m benchmarks.studies.membership{' --quick' * quick}`: {len(rows)} runs on {machines}."
    table = [
        {
            "what happens": cases[one.case].what,
            "runs": str(one.runs),
            "ordinary iteration": f"{one.iteration_s:.2f} s",
            "wait beyond it, median": f"{one.median_s:.2f} s",
            "bar": f"{cases[one.case].median_bar_s:g} s",
            "p95": f"{one.p95_s:.2f} s",
            "bar of p95": f"{cases[one.case].p95_bar_s:g} s",
            "steps lost, repeated": f"{one.lost}, {one.repeated}",
            "weights of the others": "equal" if one.equal else "**not equal**",
            "bars": f"**{one.verdict}**",
        }
        for one in found
    ]
    update_page(page, f"{told}\n\n{markdown(table)}\n")


if __name__ == "__main__":
    sys.exit(main())
