"""What it costs the others when a worker or a server goes, or a worker comes: how long they wait, and steps lost.

    python -m benchmarks.studies.membership.cost [--json FILE] [--limit-s SECONDS] [--quick]

Each run is a job of its own under `dynamix launch`: four workers, all on this machine, train a model of 37 MB, with two
servers on real BytePS, or over a ring. In the middle of a backward pass something happens to a worker, to each of the
four in turn: CASES says what. What counts is how long the others wait for a step
(cost_job.py), that none is lost, and that the arbitrator goes on to decide. 20 runs of each
case take about 40 minutes of a machine that does nothing else.

Every run is a row of membership.csv, written as soon as it ends. The same command goes on from there and renews the
page. After `--limit-s` no run begins. Delete the file to measure anew. `--quick` makes one run of each case, to show
that the study works, and keeps it in membership-quick.csv.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import markdown, update_page, where, write_csv
from benchmarks.studies.kept_rows import read_rows
from benchmarks.studies.membership.cost_job import WORKERS, Event, Outcome, run_job
from benchmarks.studies.study import resumable_arguments
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console

RUNS = 20
MET, MISSED, OPEN = "met", "missed", "not decided"

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure of the runs of a case may be at most.

    Attributes:
        figure: its name.
        of: the figure of a run.
        unit: in which it is counted.
        median: of all runs.
        p95: what 19 of 20 runs do not exceed; None: there is no bar on it.
    """

    figure: str
    of: Callable[[Row], float]
    unit: str
    median: float
    p95: float | None = None


def _wait(median_s: float, p95_s: float) -> Bar:
    return Bar("wait beyond an iteration", lambda row: float(row["beyond_s"]), "s", median_s, p95_s)


def _in_iterations(column: str) -> Callable[[Row], float]:
    return lambda row: float(row[column]) / float(row["iteration_s"])


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to one of four workers or two servers, and the bars on what it may cost."""

    key: str
    what: str
    event: Event
    bars: tuple[Bar, ...]


LEASE_S = Timeouts().lease_s  # of the jobs
_ENTRY = (
    Bar("wait beyond an iteration and the copy", _in_iterations("beyond_s"), "iterations", 1.0),
    Bar("its first sample after its start", lambda row: float(row["first_sample_s"]), "s", 8.0),
)
CASES = (
    Case("kill", "`kill -9`", Event(signal.SIGKILL), (_wait(1.0, 2.0),)),
    Case("stop", "it is stopped for ever", Event(signal.SIGSTOP), (_wait(LEASE_S + 1, LEASE_S + 1),)),
    Case("server", "`kill -9` of a server", Event(signal.SIGKILL, to_server=True), (_wait(3.0, 3.0),)),
    Case(
        "leave",
        "it leaves on notice",
        Event(signal.SIGUSR1, "longest gap"),
        (Bar("longest gap between steps", _in_iterations("wait_s"), "iterations", 1.5),),
    ),
    Case("join", "it enters again", Event(signal.SIGKILL, "entry"), _ENTRY),
    Case("join-ring", "it enters a ring again", Event(signal.SIGKILL, "entry", comm="gloo"), _ENTRY),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure over all runs of a case, in the unit of its bar."""

    case: str
    figure: str
    unit: str
    runs: int
    iteration_s: float
    copy_s: float
    median: float
    p95: float
    lost: int
    repeated: int
    equal: bool
    decided: bool
    verdict: str


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="too few runs for figures; shows that it works", several=False)
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
    console = make_console()
    rows: list[Row] = [{**row, "decided": row.get("decided", "")} for row in read_rows(file)]  # older runs do not tell
    missing = [(case, run) for run in range(runs) for case in CASES if (case.key, str(run)) not in _ended(rows)]
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for done, (case, run) in enumerate(missing):
            if time.monotonic() > deadline_s:
                return rows, len(missing) - done
            rows.append(row_of(case, run, run_job(case.event, struck=run % WORKERS)))
            write_csv(file, rows)
            told = ", ".join(f"{bar.figure} {bar.of(rows[-1]):.2f} {bar.unit}" for bar in case.bars)
            console.print(f"[{done + 1}/{len(missing)}] {case.key} {run}: {told}")
    return rows, 0


def _ended(rows: Sequence[Row]) -> set[tuple[str, str]]:
    return {(row["case"], row["run"]) for row in rows}


def row_of(case: Case, run: int, outcome: Outcome) -> Row:
    """What the table keeps of a run."""
    figures: dict[str, Any] = {
        "case": case.key,
        "run": run,
        "worker": run % WORKERS,
        "iteration_s": f"{outcome.iteration_s:.4f}",
        "wait_s": f"{outcome.wait_s:.4f}",
        "copy_s": f"{outcome.copy_s:.4f}",
        "beyond_s": f"{outcome.beyond_s:.4f}",
        "first_sample_s": "" if outcome.first_sample_s is None else f"{outcome.first_sample_s:.3f}",
        "lost": outcome.lost,
        "repeated": outcome.repeated,
        "equal": int(outcome.equal),
        "decided": int(outcome.decided),
        "machine": where(),
    }
    return {name: str(value) for name, value in figures.items()}


def findings(rows: Sequence[Row], runs: int) -> list[Finding]:
    """Of the cases that have a run, one for each bar. A case with fewer than `runs` of them has no verdict."""
    found = ((case, [row for row in rows if row["case"] == case.key]) for case in CASES)
    return [_finding(case, bar, mine, runs) for case, mine in found if mine for bar in case.bars]


def _finding(case: Case, bar: Bar, rows: Sequence[Row], runs: int) -> Finding:
    median, p95 = median_and_p95(list(map(bar.of, rows)))
    lost, repeated = (sum(int(row[name]) for row in rows) for name in ("lost", "repeated"))
    equal = all(row["equal"] == "1" for row in rows)
    decided = all(row.get("decided") != "0" for row in rows)
    fast = median <= bar.median and (bar.p95 is None or p95 <= bar.p95)
    verdict = (
        (MET if fast and not lost and not repeated and equal and decided else MISSED) if len(rows) >= runs else OPEN
    )
    iteration_s, copy_s = (statistics.median(float(row[name]) for row in rows) for name in ("iteration_s", "copy_s"))
    told = (case.key, bar.figure, bar.unit, len(rows), iteration_s, copy_s, median, p95)
    return Finding(*told, lost, repeated, equal, decided, verdict)


def median_and_p95(figures: Sequence[float]) -> tuple[float, float]:
    """The second: what 19 of 20 figures do not exceed."""
    return statistics.median(figures), sorted(figures)[math.ceil(0.95 * len(figures)) - 1]


def write_page(page: Path, quick: bool, rows: Sequence[Row], found: Sequence[Finding]) -> None:
    """Renew the figures of the page. Raises UsageError if it cannot be written."""
    bars = {(case.key, bar.figure): (case, bar) for case in CASES for bar in case.bars}
    machines = " and ".join(sorted({row["machine"] for row in rows}))
    told = f"`python -m benchmarks.studies.membership.cost{' --quick' * quick}`: {len(rows)} runs on {machines}."
    table = [_line(one, *bars[one.case, one.figure]) for one in found]
    update_page(page, f"{told}\n\n{markdown(table)}\n")


def _line(found: Finding, case: Case, bar: Bar) -> dict[str, str]:
    return {
        "what happens": case.what,
        "runs": str(found.runs),
        "ordinary iteration": f"{found.iteration_s:.2f} s",
        "copy": f"{found.copy_s:.2f} s" if found.copy_s else "-",
        "what counts": bar.figure,
        "median": f"{found.median:.2f} {bar.unit}",
        "bar": f"{bar.median:g}",
        "p95": f"{found.p95:.2f} {bar.unit}",
        "bar of p95": "-" if bar.p95 is None else f"{bar.p95:g}",
        "steps lost, repeated": f"{found.lost}, {found.repeated}",
        "weights": "equal" if found.equal else "**not equal**",
        "bars": f"**{found.verdict}**" + ("" if found.decided else ", no decision after it"),
    }


if __name__ == "__main__":
    sys.exit(main())
