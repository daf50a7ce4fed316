"""PNG plots of a run. A plot that fails is an event in the run folder, never the end of the job."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dynamix_ps.config.schema import Config
from dynamix_ps.report.plots import panels, style
from dynamix_ps.report.plots import panels_measured as measured
from dynamix_ps.report.plots.history import History, read_history
from dynamix_ps.report.tensorboard import NOT_INSTALLED
from dynamix_ps.run_record.evaluations import ACCURACY, curves
from dynamix_ps.run_record.run_folder import RunFolder

DOTS_PER_INCH = 130
SPLIT_LIMIT = 12  # workers shown one above the other
METRICS_LIMIT, METRICS_COLUMNS = 9, 3  # values of evaluations that are shown, and side by side


def draw_plots(folder: RunFolder, config: Config) -> list[Path]:
    """Draw all plots into `plots/` and return those that were made: none of a run without a window or an evaluation.

    Never raises: what goes wrong is appended to events.jsonl as a `degraded` event, which the summary shows.
    Call it before `write_summary`, after the recorder was closed.
    """
    made: list[Path] = []
    try:
        folder.plots_dir.mkdir(exist_ok=True)
        history = read_history(folder, config)
        if not history.evaluations and not any(worker.windows for worker in history.workers.values()):
            return made  # a run that failed at its start tells its reason without a wait for empty pictures
        figure_type = _figure_type()
    except ImportError:
        _degraded(folder, NOT_INSTALLED)
        return made
    except Exception as error:
        _degraded(folder, f"no plots: {type(error).__name__}: {error}")
        return made
    for name, draw in PLOTS.items():
        target = folder.plots_dir / f"{name}.png"
        try:
            figure = figure_type(layout="constrained", dpi=DOTS_PER_INCH)
            draw(figure, history)
            figure.savefig(target)
            made.append(target)
        except Exception as error:
            target.unlink(missing_ok=True)
            _degraded(folder, f"{target.name}: {type(error).__name__}: {error}")
    return made


def _figure_type() -> Callable[..., Any]:
    """matplotlib's Figure, used without pyplot: it draws to files without a display and keeps no global state."""
    from matplotlib.figure import Figure

    return Figure


def _evaluation(figure: Any, history: History) -> None:
    """Every recorded value over iterations, each in a picture of its own."""
    metrics = list(curves(history.evaluations).values())[:METRICS_LIMIT]
    columns = min(max(len(metrics), 1), METRICS_COLUMNS)
    rows = -(-max(len(metrics), 1) // columns)
    figure.set_size_inches(max(4.0 * columns, 8), 3.2 * rows + 0.8)
    figure.suptitle(f"Evaluations on the test set: {history.title}")
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, metric in itertools.zip_longest(every, metrics):
        panels.metric_over_iterations(axes, history, metric)


def _metric_title(history: History) -> str:
    name = history.main_metric.name if history.main_metric else ACCURACY
    return f"{name[:1].upper()}{name[1:]} on the test set"


def _step_time(figure: Any, history: History) -> None:
    """Time per sample or token of each worker over time."""
    workers = list(history.workers.values())[:SPLIT_LIMIT]
    rows = max(len(workers), 1)
    figure.set_size_inches(8, max(4.0, 1.4 * rows + 1.6))
    figure.suptitle(f"Where the time of a {history.one} goes: {history.title}")
    column = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for axes, worker in itertools.zip_longest(column, workers):
        panels.split_over_time(axes, history, worker)
        axes.label_outer()
    style.common_legend(figure, column[:1])


def _overview(figure: Any, history: History) -> None:
    figure.set_size_inches(17, 7.5)
    figure.suptitle(history.title, fontweight="bold")
    grid = figure.subplots(2, 3)
    for axes, title, draw in (
        (grid[0, 0], "Batch size per worker", panels.batch_sizes),
        (grid[0, 1], f"{history.counted.capitalize()} per second", panels.rates),
        (grid[0, 2], "Loss of training", panels.loss),
        (grid[1, 0], "Time spent waiting for other workers", panels.waiting),
        (grid[1, 1], f"Time per {history.one}, first and last plan", panels.split_by_plan),
        (grid[1, 2], _metric_title(history), panels.evaluation),
    ):
        axes.set_title(title, loc="left")
        draw(axes, history)


def _network(figure: Any, history: History) -> None:
    if measured.only_sums(history):
        where = "network not measured" if history.network_sources == "none" else "through shared memory"
        figure.suptitle(f"Sums of gradients ({where}): {history.title}")
        _measured(figure, history, (measured.sums,), columns=1)
        return
    figure.suptitle(f"Network (source: {history.network_sources}): {history.title}")
    panels = (measured.push, measured.pull, measured.retransmits, measured.rtt)
    _measured(figure, history, panels, columns=2)


def _system(figure: Any, history: History) -> None:
    figure.suptitle(f"Machine: {history.title}")
    has_gpu = any(not math.isnan(v) for worker in history.workers.values() for v in worker.measured["gpu_utilisation"])
    panels = (measured.cpu, measured.throttled, measured.memory, *((measured.gpu,) if has_gpu else ()))
    _measured(figure, history, panels, columns=2 if has_gpu else 3)


def _gradients(figure: Any, history: History) -> None:
    figure.suptitle(f"Gradients: {history.title}")
    rate = (measured.learning_rate,) if measured.has_factor(history) else ()
    panels = (measured.noise_scale, measured.gradient_std, *rate)
    _measured(figure, history, panels, columns=len(panels), legend=False)


def _measured(
    figure: Any, history: History, panels: Sequence[Callable[[Any, History], None]], columns: int, legend: bool = True
) -> None:
    """Pictures in a grid, with one legend for all of them."""
    rows = -(-len(panels) // columns)
    figure.set_size_inches(12, 3.2 * rows + 0.9)
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, draw in zip(all_axes, panels, strict=True):
        draw(axes, history)
    if legend:
        style.common_legend(figure, all_axes)


def _degraded(folder: RunFolder, detail: str) -> None:
    event = {"time_s": time.time(), "source": "launcher", "kind": "degraded", "what": "plots", "detail": detail}
    with folder.events_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


PLOTS: dict[str, Callable[[Any, History], None]] = {
    "overview": _overview,
    "step_time": _step_time,
    "evaluation": _evaluation,
    "network": _network,
    "system": _system,
    "gradients": _gradients,
}
