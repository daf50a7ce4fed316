"""How well the calibrated simulator predicts real runs that it has not seen.

    python -m benchmarks.studies.bed.calibration --json FILE --out benchmarks/results

The real runs (BytePS, three uneven workers; calibration_record.py) differ in their batch sizes. For
each run a simulator is calibrated with all other runs and predicts the run from its batch sizes alone:

- `iteration_error`: median over its windows of |simulated - measured| / measured time of an iteration;
- `time_error`: |simulated - measured| / measured training time until the test accuracy first reaches the target. The
  accuracy is interpolated between evaluations; each is the median of itself and its neighbours, because single ones
  scatter. The simulated time is the median of several seeds. Pauses for evaluation do not count.

`--out` renews the figures of calibration.md in that folder, and its picture. `--record` first repeats the real runs on
this machine and replaces the recordings when all of them have ended. It takes about seven minutes on two cores, which
no other program should use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.bed.calibration_record import RUNS, record
from dynamix_ps.sim.calibration.calibrate import scenario_of
from dynamix_ps.sim.calibration.fit_cost import predict_times
from dynamix_ps.sim.calibration.prediction import Prediction, leave_one_out, predict, simulate, table
from dynamix_ps.sim.calibration.series import Series, series_of
from dynamix_ps.sim.recorded import SUFFIX, read_run
from dynamix_ps.sim.scenario.load import Scenario

FOLDER = Path(__file__).parents[2] / "recorded"
ITERATION_BAR, TIME_BAR = 0.1, 0.2
SEED = 0


def measure(folder: Path) -> tuple[list[Series], list[Scenario], list[Prediction]]:
    """The runs; for each one the scenario calibrated with the others, and its prediction."""
    recorded = [read_run(folder / f"{run.name}{SUFFIX}") for run in RUNS]
    runs = [series_of(run) for run in recorded]
    scenarios = leave_one_out(scenario_of("calibrated", recorded, runs), runs)
    rng = np.random.default_rng(SEED)
    return runs, scenarios, [predict(scenario, run, rng) for scenario, run in zip(scenarios, runs, strict=True)]


def figures_of(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The content of the JSON file; NaN becomes null."""
    rows = [
        {key: _known(value) for key, value in {**dataclasses.asdict(one), "time_error": one.time_error}.items()}
        for one in predictions
    ]
    return {
        "runs": rows,
        "median_iteration_error": _known(float(np.median([one.iteration_error for one in predictions]))),
        "median_time_error": _known(float(np.median([one.time_error for one in predictions]))),
        "iteration_bar": ITERATION_BAR,
        "time_bar": TIME_BAR,
        "within_both": sum(one.iteration_error <= ITERATION_BAR and one.time_error <= TIME_BAR for one in predictions),
        "cores": os.cpu_count(),
    }


def page_block(predictions: Sequence[Prediction], target_accuracy: float, command: str) -> str:
    """The table of the page, and how many runs are within both bars, in Markdown."""
    found = figures_of(predictions)
    rows = [
        {
            "run": one.name,
            "sizes": run.sizes_in_words,
            "iteration time off by": _percent(one.iteration_error, 1),
            f"s to {_percent(target_accuracy)}, measured": f"{one.measured_s:.1f}",
            "simulated": f"{one.predicted_s:.1f}",
            "off by": _percent(one.time_error, 1),
        }
        for run, one in zip(RUNS, predictions, strict=True)
    ]
    within = (
        f"{found['within_both']} of {len(rows)} runs are within {_percent(ITERATION_BAR)} (time of an iteration) and "
        f"{_percent(TIME_BAR)} (time to {_percent(target_accuracy)})."
    )
    return f"`{command}`\n\n{within}\n\n{markdown(rows)}\n\n"


def _percent(part: float, digits: int = 0) -> str:
    return f"{100 * part:.{digits}f} %"


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def into_figure(figure: Any, runs: Sequence[Series], scenarios: Sequence[Scenario]) -> None:
    """Left: time of an iteration, window by window. Right: test accuracy over training time. Dots are measured."""
    from dynamix_ps.report.plots.style import WORKER_COLOURS

    figure.set_size_inches(12, 5)
    figure.suptitle("Real runs (dots) and predictions of a simulator calibrated with the other runs")
    left, right = figure.subplots(1, 2)
    rng = np.random.default_rng(SEED)
    longest_ms = 1.1e3 * max(float(run.iteration_s.max()) for run in runs)
    ends_ms = np.array([0.0, longest_ms])
    left.fill_between(ends_ms, 0.9 * ends_ms, 1.1 * ends_ms, color="#dddddd", label="10 % off")
    for colour, scenario, run in zip(WORKER_COLOURS, scenarios, runs, strict=False):
        predicted_ms = 1e3 * predict_times(scenario, run.sizes).iteration_s
        left.plot(1e3 * run.iteration_s, predicted_ms, ".", color=colour, label=run.name)
        time_s, accuracy = simulate(scenario, run, rng)
        right.plot(np.median(time_s, axis=1), np.median(accuracy, axis=1), color=colour, label=run.name)
        measured_s = np.interp(run.evaluated, np.arange(len(run.clock_s)), run.clock_s)
        right.plot(measured_s, run.test_accuracy, ".", color=colour)
    right.axhline(scenarios[0].target_accuracy, color="#777777", linewidth=0.8)
    left.set(xlim=ends_ms, ylim=ends_ms, xlabel="measured ms per iteration", ylabel="simulated ms per iteration")
    right.set(ylim=(0.6, 0.92), xlabel="training time (s)", ylabel="test accuracy, target as a line", xlim=(0, None))
    for axes in (left, right):
        axes.grid(color="#e5e5e5", which="both")
        axes.set_axisbelow(True)
        axes.legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="renew the page and its picture here")
    parser.add_argument("--record", action="store_true", help="repeat all real runs on this machine first")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the recordings (default: those shipped)")
    args = parser.parse_args()
    console = Console()
    if args.record:
        record(args.folder, console)
    runs, scenarios, predictions = measure(args.folder)
    console.print(table("each run predicted from the others", predictions))
    figures = figures_of(predictions)
    console.print(
        f"{figures['within_both']} of {len(predictions)} runs within {ITERATION_BAR:.0%} (time of an iteration) "
        f"and {TIME_BAR:.0%} (time to {scenarios[0].target_accuracy:.0%})",
        highlight=False,
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    if args.out:
        command = f"python -m benchmarks.studies.bed.calibration{' --record' * args.record} --out {args.out}"
        update_page(args.out / "calibration.md", page_block(predictions, scenarios[0].target_accuracy, command))
        draw(args.out / "calibration.png", lambda figure: into_figure(figure, runs, scenarios))


if __name__ == "__main__":
    main()
