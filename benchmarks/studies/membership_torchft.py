"""What it costs the others in torchft when a replica goes and comes back, beside the study of membership.

    python -m venv VENV && VENV/bin/pip install torchft==0.2.0 torch==2.13.0
    python -m benchmarks.studies.membership_torchft --venv VENV [--json FILE] [--limit-s SECONDS]

Each run is a job of its own: a lighthouse and four replicas of one process each, all on this machine, train the model
of that study over gloo. In the middle of the backward pass of step 20 a replica is ended by `kill -9`, each of the four
in turn, and started again once the others have made five more steps. torchft waits for others by limits that its user
sets: SETTINGS has those of its own example, and short ones.

Every run is a row of membership-torchft.csv, written as soon as it ends. The same command goes on from there and renews
the second table of membership.md, whose first line is ours, from membership.csv. Delete the file to measure anew.
Nothing else of this project needs torchft, so it has an environment of its own, with the torch of this one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.membership import RUNS, Row, median_and_p95, read
from benchmarks.studies.membership_job import WORKERS
from benchmarks.studies.membership_torchft_job import Limits, Outcome, run_job
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console

SETTINGS = {
    "limits of its example": Limits(join_s=10.0, heartbeat_s=5.0, sum_s=5.0),
    "short limits": Limits(join_s=0.5, heartbeat_s=0.5, sum_s=1.0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True, help="a virtual environment with torchft")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each setting (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    args = parser.parse_args(arguments)
    if not (args.venv / "bin" / "torchft_lighthouse").exists():
        raise UsageError(f"--venv {args.venv}: has no torchft; make one as --help says")
    rows, left = measure(args.venv, args.out / "membership-torchft.csv", args.runs, time.monotonic() + args.limit_s)
    if rows:
        table = compare(read(args.out / "membership.csv"), rows)
        told = f"`python -m benchmarks.studies.membership_torchft --venv VENV`: {len(rows)} runs of torchft on"
        update_page(args.out / "membership.md", None, f"{told} {rows[0]['machine']}.\n\n{markdown(table)}\n")
    if args.json:
        args.json.write_text(json.dumps({"left": left, "runs": rows}, indent=2) + "\n")
    if left:
        make_console().print(f"{left} runs are left; the same command goes on")
    return 0


def measure(venv: Path, file: Path, runs: int, deadline_s: float) -> tuple[list[Row], int]:
    """Make the runs that the file lacks. Returns all rows, and how many runs are left.

    Args:
        runs: of each setting.
        deadline_s: begin none after this moment of the monotonic clock.
    """
    console, rows = make_console(), read(file)
    ended = {(row["limits"], row["run"]) for row in rows}
    missing = [(name, run) for run in range(runs) for name in SETTINGS if (name, str(run)) not in ended]
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for done, (name, run) in enumerate(missing):
            if time.monotonic() > deadline_s:
                return rows, len(missing) - done
            outcome = run_job(venv, SETTINGS[name], struck=run % WORKERS)
            rows.append(row_of(name, run, outcome))
            write_csv(file, rows)
            console.print(f"[{done + 1}/{len(missing)}] {name} {run}: {outcome}")
    return rows, 0


def row_of(limits: str, run: int, outcome: Outcome) -> Row:
    """What the table keeps of a run. Args: limits: their name."""
    figures = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in asdict(outcome).items()}
    row = {"limits": limits, "run": run, "replica": run % WORKERS, **figures, "machine": where()}
    return {name: str(value) for name, value in row.items()}


def compare(ours: Sequence[Row], torchft: Sequence[Row]) -> list[dict[str, str]]:
    """A line for ours, if there are runs of it, and one for each setting of torchft.

    Args:
        ours: rows of the study of membership.
    """
    kill, join = ([row for row in ours if row["case"] == case] for case in ("kill", "join"))
    lines = []
    if kill and join:
        entry = [float(row["beyond_s"]) + float(row["copy_s"]) for row in join]  # torchft does not tell its copy
        lines.append(_line("ours", kill, [float(row["beyond_s"]) for row in kill], join, entry))
    for name in SETTINGS:
        rows = [row for row in torchft if row["limits"] == name]
        waits, entry = ([_beyond_s(row, of) for row in rows] for of in ("wait_s", "entry_wait_s"))
        if rows:
            lines.append(_line(f"torchft, {name}", rows, waits, rows, entry))
    return lines


def _beyond_s(row: Row, wait: str) -> float:
    """A wait without one ordinary iteration."""
    return float(row[wait]) - float(row["iteration_s"])


def _line(
    who: str, kills: Sequence[Row], waits_s: Sequence[float], entries: Sequence[Row], entry_waits_s: Sequence[float]
) -> dict[str, str]:
    wait_s, entry_s = median_and_p95(waits_s), median_and_p95(entry_waits_s)
    iteration_s, _ = median_and_p95([float(row["iteration_s"]) for row in kills])
    first_s, _ = median_and_p95([float(row["first_sample_s"]) for row in entries])
    lost, repeated = (sum(int(row[name]) for row in kills) for name in ("lost", "repeated"))
    return {
        "who": who,
        "runs": str(len(kills)),
        "ordinary iteration": f"{iteration_s:.2f} s",
        "`kill -9`: wait beyond an iteration": f"{wait_s[0]:.2f} s",
        "p95": f"{wait_s[1]:.2f} s",
        "steps lost, repeated": f"{lost}, {repeated}",
        "it enters again: wait beyond an iteration, with the copy": f"{entry_s[0]:.2f} s",
        "p95 of that": f"{entry_s[1]:.2f} s",
        "its first sample after its start": f"{first_s:.2f} s",
    }


if __name__ == "__main__":
    sys.exit(main())
