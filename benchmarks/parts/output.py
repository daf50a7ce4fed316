"""What output costs a training: iterations beside those without it, and how many lines per second the launcher takes.

    python -m benchmarks.parts.output --json FILE

Two workers train over gloo and print RATE lines per second together, each line with a system call of its own, as
`python -u` does. Blocks of iterations without output, with output to a file and with output to the launcher follow
each other in one run. Ratios are geometric means over such rounds, without the first one.

    file        time of iterations with output to a file over that of those without output: what printing costs
    launcher    the same with output to the launcher
    held up     the second over the first: what the launcher adds; at most LIMIT. It takes CPU time from two workers
                where there are but two cores
    lines/s     that both get rid of in their blocks with output to the launcher
    at most     the same where both print without pause, and do nothing else

The log files must have every line, else this ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.parts.processes.output_worker import AT_ONCE, ITERATIONS, LINES

RATE, WORKERS, LIMIT = 20_000, 2, 1.05
_LIMIT_S = 300.0
_CLUSTER = "name: output\ncomm: gloo\nmode: observe\ncluster: {workers: [{batch: 32}, {batch: 32}]}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--kinds", nargs="+", choices=LINES, default=list(LINES), help="kinds of lines (default: all)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that count (default: %(default)s)")
    args = parser.parse_args()
    rows = [measured(kind, args.rounds) for kind in args.kinds]
    table = Table(title=f"{RATE:,} lines/s of {WORKERS} workers: times of an iteration over those without output")
    for column in ("lines", "quiet ms", "file", "launcher", "held up", "lines/s", "at most"):
        table.add_column(column, justify="right")
    for row in rows:
        ratios = (f"{row[name]:.3f}" for name in ("file", "launcher", "held_up"))
        rates = (f"{row[name]:,.0f}" for name in ("lines_per_s", "at_most_per_s"))
        table.add_row(row["lines"], f"{row['quiet_ms']:.2f}", *ratios, *rates)
    Console().print(table)
    worst = max(row["held_up"] for row in rows)
    print(f"bar: held up at most {LIMIT:g}, {'met' if worst <= LIMIT else 'missed'}")
    if args.json:
        figures = {"rate_per_s": RATE, "workers": WORKERS, "limit": LIMIT, "cores": os.cpu_count(), "rows": rows}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measured(kind: str, rounds: int) -> dict[str, Any]:
    """The figures of one run. Ends this program if the run fails, or if a log lacks a line."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "cluster.yaml").write_text(_CLUSTER)
        worker = [sys.executable, "-m", "benchmarks.parts.processes.output_worker"]
        worker += [kind, str(RATE / WORKERS), str(1 + rounds), str(base / "figures.json")]
        command = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", "cluster.yaml", "--", *worker]
        done = subprocess.run(
            command, cwd=base, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if done.returncode:
            sys.exit(f"error: the run failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        figures = json.loads((base / "figures.json").read_text())
        for rank in range(WORKERS):
            _check_log(base / "runs" / "latest" / "logs" / f"worker-{rank}.log", kind)
    blocks_s = {name: series[1:] for name, series in figures["taken_s"].items()}
    file, launcher = (_ratio(blocks_s[name], blocks_s["quiet"]) for name in ("file", "launcher"))
    return {
        "lines": kind,
        "quiet_ms": 1000 * statistics.median(blocks_s["quiet"]) / (ITERATIONS - 1),
        "file": file,
        "launcher": launcher,
        "held_up": _ratio(blocks_s["launcher"], blocks_s["file"]),
        "lines_per_s": WORKERS * figures["lines"]["launcher"] / sum(figures["taken_s"]["launcher"]),
        "at_most_per_s": WORKERS * AT_ONCE / figures["at_once_s"],
    }


def _ratio(some_s: Sequence[float], others_s: Sequence[float]) -> float:
    """Geometric mean of the ratios of blocks that follow each other."""
    return statistics.geometric_mean(one / other for one, other in zip(some_s, others_s, strict=True))


def _check_log(file: Path, kind: str) -> None:
    """Every line is in the log as it was printed: none is cut, and those of the last part are all there."""
    text, end = LINES[kind]
    line = (text + end).encode()
    data = file.read_bytes()
    lines = data.count(line)
    if lines < AT_ONCE or len(data.replace(line, b"")) > 10_000:  # others print a few lines as well
        sys.exit(f"error: {file} has {lines} whole lines of {len(data)} bytes")


if __name__ == "__main__":
    main()
