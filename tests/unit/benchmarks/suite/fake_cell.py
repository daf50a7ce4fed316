"""Replaces the process of a cell, without training: the contender's name says how it behaves.

python fake_cell.py SCENARIO WORKLOAD CONTENDER SEED --out FOLDER
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from benchmarks.suite.results import CellName, CellResult, CurvePoint, Ended, write_result


def result(name: CellName, ended: Ended = "done", reached_s: float = 12.0) -> CellResult:
    """Reaches 80 % after `reached_s`."""
    return CellResult(
        name=name,
        ended=ended,
        reason="" if ended == "done" else "because",
        network="loopback",
        emulation="none",
        thresholds=(0.7, 0.8),
        limit_s=60.0,
        epochs=1,
        machine="one of two cores",
        machine_gflop_per_s=30.0,
        train_s=20.0,
        samples=1000,
        iterations=10,
        plans=2,
        wait_fraction=0.1,
        compute_spread=0.2,
        decision_p50_ms=1.0,
        decision_p99_ms=2.0,
        fallback_windows=0,
        windows=0,
        replayed=0,
        curve=(CurvePoint(reached_s, 500, 0.5, 0.8, 1.0),),
        sizes=(),
        workers=(),
    )


def obey(number: int, frame: FrameType | None) -> None:
    print("stopped in order", flush=True)
    sys.exit(130)


def main(scenario: str, workload: str, contender: str, seed: str, _: str, out: str) -> int:
    name = CellName(scenario, workload, contender, int(seed))
    if contender == "dies":
        print("warming up\nerror: the reason", flush=True)
        return 4
    if contender in ("hangs", "stubborn"):
        signal.signal(signal.SIGTERM, obey if contender == "hangs" else signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            time.sleep(1)
    if contender == "litters":
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    if contender != "forgets":
        write_result(Path(out), result(name, "timed out" if contender == "slow" else "done"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
