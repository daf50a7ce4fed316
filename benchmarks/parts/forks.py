"""Seconds from the command to the first iteration on one host, with forked workers and with new processes, by turns.

    python -m benchmarks.parts.forks --json FILE

Three workers train with torch over BytePS. The time ends when the last worker has made its first step. The ratio is the
one of the medians; at most RATIO_LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RATIO_LIMIT = 0.7
WORKERS = 3
WAYS = {"forked": True, "new": False}
_LIMIT_S = 120.0
_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    args = parser.parse_args()
    figures = starts(args.rounds)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    for way in WAYS:
        print(f"{way:>8}  {figures[f'{way}_s']:.2f} s")
    print(f"   ratio  {figures['ratio']:.2f}  (limit {RATIO_LIMIT})")


def starts(rounds: int) -> dict[str, Any]:
    """The median of each way, and their ratio."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for place in range(rounds):
        for way in sorted(WAYS, reverse=place % 2 == 1):
            print(f"start {place + 1} of {rounds}: {way}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="dynamix-forks-") as folder:
                seconds[way].append(first_step_s(Path(folder), WAYS[way]))
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    return {
        "cores": os.cpu_count(),
        "ratio": medians["forked"] / medians["new"],
        **{f"{way}_s": medians[way] for way in WAYS},
        **{f"{way}_starts_s": seconds[way] for way in WAYS},
    }


def first_step_s(folder: Path, fork: bool) -> float:
    """Run a job to its end; returns the seconds until its last worker had made its first step."""
    file = folder / "cluster.yaml"
    settings = {"launch": {"fork": fork}, "cluster": {"workers": [{}] * WORKERS}, "run_dir": str(folder / "runs")}
    file.write_text(json.dumps(settings))
    worker = ("python", "-m", "benchmarks.parts.processes.launch_worker", "dynamix", str(folder))
    command = (sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(file), "--", *worker)
    environ = {**os.environ, "PYTHONPATH": str(_ROOT), "DYNAMIX_PLOTS": "no"}
    began_s = time.time()
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"error: a job ended with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return max(float(one.read_text()) for one in folder.glob("rank-*")) - began_s


if __name__ == "__main__":
    main()
