"""Speed and memory of the simulator: windows of workers per second on one core, and memory for many workers.

    python -m benchmarks.parts.sim_speed --json FILE

A window of a worker is one step of the simulator and the 41 features that a learned policy sees. Sizes change in every
window, and clusters are drawn at random (with bursts, events and drift). The best of several repetitions counts,
because other programs on the machine can only slow it down. The memory is the largest resident set of a process that
does nothing else. `same_bits`: two runs with the same seed give the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator

BAR_PER_S, BAR_BYTES = 1e6, 2 * 2**30
CASES = ((32, 64), (1024, 8))  # (workers, environments)


class Loop:
    """A simulator with its features, and sizes that rise and fall."""

    def __init__(self, workers: int, environments: int) -> None:
        rng = np.random.default_rng(0)
        self._simulator = Simulator(draw(rng, environments, workers), rng)
        self._states = StateBuilder(
            ClusterModel(environments, workers, effects=False)
        )  # as in training on such clusters
        self._sizes = [self._simulator.sizes, 2 * self._simulator.sizes]

    def run(self, windows: int) -> State:
        for number in range(windows):
            state = self._states.observe(self._simulator.step(self._sizes[number % 2]))
        return state


def measure(workers: int, environments: int, windows: int, repetitions: int) -> dict[str, Any]:
    """The figures of one case; call it in a fresh process."""
    best_s, digests = float("inf"), set()
    for _ in range(repetitions):
        loop = Loop(workers, environments)
        loop.run(10)
        began_s = time.perf_counter()
        state = loop.run(windows)
        best_s = min(best_s, time.perf_counter() - began_s)
        digests.add(hashlib.sha256(state.rows.tobytes()).hexdigest())
    return {
        "workers": workers,
        "environments": environments,
        "worker_windows_per_s": workers * environments * windows / best_s,
        "ms_per_step": 1e3 * best_s / windows,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "same_bits": len(digests) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--windows", type=int, default=500, help="windows of every environment, per repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(measure(*CASES[args.case], args.windows, args.repetitions)))
        return
    rows = []
    one_thread = {**os.environ, **ONE_THREAD}
    for case in range(len(CASES)):
        command = [
            sys.executable,
            "-m",
            "benchmarks.parts.sim_speed",
            "--case",
            str(case),
            "--windows",
            str(args.windows),
        ]
        command += ["--repetitions", str(args.repetitions)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=one_thread).stdout))
    table = Table(title="simulator with features, one core")
    for column in ("workers", "environments", "1e6 windows/s", "ms per step", "peak MiB", "same bits"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["workers"]),
            str(row["environments"]),
            f"{row['worker_windows_per_s'] / 1e6:.2f}",
            f"{row['ms_per_step']:.3f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            "yes" if row["same_bits"] else "NO",
        )
    Console().print(table)
    fast, small = rows[0]["worker_windows_per_s"] >= BAR_PER_S, rows[1]["peak_bytes"] <= BAR_BYTES
    passed = fast and small and all(row["same_bits"] for row in rows)
    print(f"bars (1e6 worker-windows/s, 2 GiB, same bits): {'met' if passed else 'missed'}")
    if args.json:
        args.json.write_text(json.dumps({"cases": rows, "passed": passed, "cores": os.cpu_count()}, indent=2) + "\n")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
