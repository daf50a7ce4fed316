"""Whether a rehearsal comes to what real runs came to.

    python -m benchmarks.studies.bed.rehearsal --json FILE [--run NAME ...]

The real runs are those of the calibration study: BytePS, three uneven workers, a small network on Fashion-MNIST. Each
is rehearsed with its own cluster file, seed and command, on a cluster whose times are fitted to the other runs.

- `accuracy_difference`: largest difference of the test accuracy between rehearsal and real run after the same number of
  iterations. Under the same plans only rounding differs.
- `clock_error`: |rehearsed - measured| / measured training time of as many iterations as both have.
- `time_error`: |rehearsed - measured| / measured training time until the test accuracy first reaches the target
  (dynamix_ps/sim/calibration/series.py says how), evaluations left out; at most TIME_BAR.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.studies.bed.calibration import FOLDER
from benchmarks.studies.bed.calibration_record import RUNS
from dynamix_ps.rehearsal.study import Study, StudyRun
from dynamix_ps.sim.calibration.calibrate import calibrate_times, cluster_of
from dynamix_ps.sim.calibration.series import Series, series_of
from dynamix_ps.sim.recorded import SUFFIX, RecordedRun, read_run

TIME_BAR = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    names = [run.name for run in RUNS]
    parser.add_argument("--run", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="rehearsals at a time")
    args = parser.parse_args()
    recorded = {name: read_run(FOLDER / f"{name}{SUFFIX}") for name in names}
    figures = [figures_of(recorded[name], rehearse(name, recorded, args.jobs)) for name in args.run or names]
    table = Table(title="real runs and their rehearsals")
    for column in ("run", "s to target, measured", "rehearsed", "off by", "clock off by", "accuracy off by"):
        table.add_column(column, justify="right")
    for one in figures:
        seconds = (f"{one[key]:.1f}" for key in ("measured_s", "rehearsed_s"))
        table.add_row(
            one["run"],
            *seconds,
            f"{one['time_error']:.1%}",
            f"{one['clock_error']:.1%}",
            f"{one['accuracy_difference']:.4f}",
        )
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"runs": figures, "time_bar": TIME_BAR}, indent=2) + "\n")


def rehearse(name: str, recorded: dict[str, RecordedRun], jobs: int) -> RecordedRun:
    """This run in a rehearsal whose times come from the other runs."""
    run = recorded[name]
    others = [other for other in recorded.values() if other is not run]
    scenario = calibrate_times(cluster_of("fitted", others), [series_of(other) for other in others])
    config = run.config
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        study = Study(Path(folder), config, [scenario], [config.policy.name], [config.seed], config.command)
        study.run_missing(jobs, lambda done: None)
        return read_run(study.folder_of(StudyRun(scenario.name, config.policy.name, config.seed)).path)


def figures_of(real: RecordedRun, rehearsed: RecordedRun) -> dict[str, Any]:
    ours, theirs = series_of(rehearsed), series_of(real)
    target = real.config.target_accuracy or 0.0
    measured_s, rehearsed_s = theirs.time_to(target), ours.time_to(target)
    return {
        "run": real.name,
        "measured_s": measured_s,
        "rehearsed_s": rehearsed_s,
        "clock_error": clock_error(ours, theirs),
        "time_error": abs(rehearsed_s / measured_s - 1),
        "accuracy_difference": accuracy_difference(ours, theirs),
    }


def clock_error(one: Series, other: Series) -> float:
    """Relative difference of the time of the iterations that both have."""
    last = min(len(one.clock_s), len(other.clock_s)) - 1
    return float(abs(one.clock_s[last] / other.clock_s[last] - 1))


def accuracy_difference(one: Series, other: Series) -> float:
    """The largest over the evaluations that both have after the same iterations."""
    shared, mine, theirs = np.intersect1d(one.evaluated, other.evaluated, return_indices=True)
    return float(np.abs(one.test_accuracy[mine] - other.test_accuracy[theirs]).max()) if len(shared) else float("nan")


if __name__ == "__main__":
    main()
