"""Experiment loggers as listeners of a run: batch sizes, times, losses and evaluations beside what the script logs.

    run.listen(wandb_listener())          # or mlflow_listener(); accelerator.listen(...), strategy.listen(...)

Call it on worker 0, or on every worker that has a logger: a worker logs what it measures, and worker 0 also what holds
for all. `listener_for(log)` serves any other logger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dynamix_ps.field_table import Field
from dynamix_ps.messages import WINDOW

PREFIX = "dynamix/"
Log = Callable[[dict[str, float], int], object]


def listener_for(log: Log) -> Callable[[Mapping[str, Any]], None]:
    """A listener that calls `log(numbers by name, iteration)`, in a thread of its own."""

    def listener(line: Mapping[str, Any]) -> None:
        numbers, iteration = numbers_in(line)
        if numbers:
            log({PREFIX + name: value for name, value in numbers.items()}, iteration)

    return listener


def wandb_listener(run: Any = None) -> Callable[[Mapping[str, Any]], None]:
    """Logs to this run of Weights & Biases, or to the one that `wandb.init()` has begun.

    Charts have the iteration as their x axis; the script's own steps stay as they are.
    """
    import wandb

    target = wandb.run if run is None else run
    if target is None:
        raise RuntimeError("wandb_listener() before wandb.init(); call it afterwards")
    step = f"{PREFIX}iteration"
    target.define_metric(step)
    target.define_metric(f"{PREFIX}*", step_metric=step)
    return listener_for(lambda numbers, iteration: target.log({**numbers, step: iteration}))


def mlflow_listener() -> Callable[[Mapping[str, Any]], None]:
    """Logs to the run of MLflow that is active in this thread."""
    import mlflow

    active = mlflow.active_run()
    if active is None:
        raise RuntimeError("mlflow_listener() before mlflow.start_run(); call it afterwards")
    run_id = active.info.run_id  # the listener's thread has an active run of its own
    return listener_for(lambda numbers, iteration: mlflow.log_metrics(numbers, step=iteration, run_id=run_id))


def numbers_in(line: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """The known numbers of a line, by name, and the iteration they belong to; none for lines without numbers."""
    kind = line["kind"]
    if kind == "window":
        rank, iteration = line["rank"], line["first_iteration"] + line["iterations"]
        found = {_name(field, rank): line.get(field.name) for field in WINDOW.values() if _is_logged(field, rank)}
    elif kind == "plan_applied":
        sizes, iteration = line["batch_sizes"], line["iteration"]
        found = {f"worker-{rank}/planned_batch_size": size for rank, size in enumerate(sizes)}
        found |= {"global_batch": sum(sizes), "lr_factor": line["lr_factor"]}
    elif kind == "evaluation":
        iteration = line["iteration"]
        found = {f"evaluation/{name}": value for name, value in line["values"].items()}
    else:
        return {}, 0
    return {
        name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)
    }, iteration


def _is_logged(field: Field, rank: int) -> bool:
    return field.is_number and field.metric.chart and (field.metric.scope == "worker" or rank == 0)


def _name(field: Field, rank: int) -> str:
    return field.name if field.metric.scope == "cluster" else f"worker-{rank}/{field.name}"
