"""Experiment loggers as listeners."""

from __future__ import annotations

import math
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import worker_hooks.session
from dynamix_ps.integrations.loggers import listener_for, mlflow_listener, numbers_in, wandb_listener
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.session import Session


@pytest.fixture(autouse=True)
def _first_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_hooks.session, "_accounts", {})


def trained(*listeners: Any) -> None:
    model = nn.Linear(2, 2)
    data = TensorDataset(torch.randn(40, 2), torch.zeros(40, dtype=torch.long))
    run = open_run(
        [model], [torch.optim.SGD(model.parameters(), 0.1)], data, Session(settings_for(mode="observe"), "torch")
    )
    for listener in listeners:
        run.listen(listener)
    for inputs, targets in run.batches(epochs=2):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(model(inputs), targets))
        run.optimizers[0].step()
    run.evaluate(data, lambda inputs, targets: {"accuracy": (model(inputs).argmax(1) == targets).sum()})
    run.close()


def test_windows_and_evaluations_reach_the_logger_outside_of_the_training_thread():
    logged: list[tuple[dict[str, float], int]] = []
    threads = set()

    def log(numbers: dict[str, float], iteration: int) -> None:
        threads.add(threading.current_thread().name)
        logged.append((numbers, iteration))

    trained(listener_for(log))
    names = {name for numbers, _ in logged for name in numbers}
    assert {"dynamix/worker-0/loss", "dynamix/global_loss", "dynamix/evaluation/accuracy"} <= names
    assert all(math.isfinite(value) for numbers, _ in logged for value in numbers.values())
    assert [iteration for _, iteration in logged] == sorted(iteration for _, iteration in logged)
    assert logged[-1][1] == 10
    assert threads == {"dynamix-reporter"}


def test_an_error_of_a_logger_ends_it_and_nothing_else(caplog):
    calls: list[str] = []

    def broken(line: Any) -> None:
        calls.append(line["kind"])
        raise ConnectionError("no such host")

    kinds: list[str] = []
    trained(broken, lambda line: kinds.append(line["kind"]))
    assert len(calls) == 1
    assert {"window", "evaluation", "finished", "degraded"} <= set(kinds)
    assert "broken: ConnectionError: no such host" in caplog.text


def test_what_holds_for_all_workers_is_logged_by_worker_0_alone():
    window = {"kind": "window", "first_iteration": 3, "iterations": 3, "global_loss": 0.5, "loss": 0.25}
    assert numbers_in({**window, "rank": 0}) == ({"global_loss": 0.5, "worker-0/loss": 0.25}, 6)
    assert numbers_in({**window, "rank": 1}) == ({"worker-1/loss": 0.25}, 6)


def test_plans_are_logged_with_the_size_of_every_worker():
    line = {"kind": "plan_applied", "rank": 0, "version": 2, "iteration": 7, "batch_sizes": [5, 3], "lr_factor": 1.0}
    numbers = {"worker-0/planned_batch_size": 5, "worker-1/planned_batch_size": 3, "global_batch": 8, "lr_factor": 1.0}
    assert numbers_in(line) == (numbers, 7)


def test_wandb_gets_the_iteration_as_its_x_axis(monkeypatch):
    defined, logged = [], []
    run = SimpleNamespace(define_metric=lambda *args, **named: defined.append((args, named)), log=logged.append)
    module = ModuleType("wandb")
    module.run = None
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(RuntimeError, match=r"before wandb\.init"):
        wandb_listener()
    module.run = run
    wandb_listener()({"kind": "evaluation", "rank": 0, "iteration": 4, "values": {"accuracy": 0.5, "loss": None}})
    assert (("dynamix/*",), {"step_metric": "dynamix/iteration"}) in defined
    assert logged == [{"dynamix/evaluation/accuracy": 0.5, "dynamix/iteration": 4}]


def test_mlflow_logs_to_the_run_that_was_active(monkeypatch):
    logged = []
    module = ModuleType("mlflow")
    module.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="abc"))
    module.log_metrics = lambda numbers, step, run_id: logged.append((numbers, step, run_id))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    listener = mlflow_listener()
    module.active_run = lambda: None  # as in another thread
    listener({"kind": "evaluation", "rank": 0, "iteration": 4, "values": {"accuracy": 0.5}})
    assert logged == [({"dynamix/evaluation/accuracy": 0.5}, 4, "abc")]
    with pytest.raises(RuntimeError, match=r"before mlflow\.start_run"):
        mlflow_listener()
