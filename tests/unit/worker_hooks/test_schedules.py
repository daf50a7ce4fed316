"""Schedules of the learning rate and the number of steps. In one process (comm: local)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix
from docs.generate.pages import DOCS
from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import SAMPLES, lines, make_run, train
from worker_hooks.planning.schedules import missed_end
from worker_hooks.run import Run

STEPS = 7  # of a pass


def told(run: Run, folder: Any) -> list[str]:
    run.close()
    return [line["detail"] for line in lines(folder) if line["kind"] == "degraded" and line["what"] == "learning rate"]


def stepping(run: Run, scheduler: Any, epochs: int, by_pass: bool = False) -> None:
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches():
            run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
            run.optimizers[0].step()
            if not by_pass:
                scheduler.step()
        if by_pass:
            scheduler.step()


@pytest.mark.parametrize(
    ("make", "planned"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=28), 28),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=28), 28),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10), 10),
        (lambda o: lr_scheduler.PolynomialLR(o, total_iters=20), 20),
        (lambda o: lr_scheduler.LambdaLR(o, partial(lambda step, num_training_steps: 1.0, num_training_steps=21)), 21),
    ],
)
def test_a_schedule_that_training_ends_far_from_its_end_is_told(make: Any, planned: int, tmp_path: Any) -> None:
    run = make_run(tmp_path)

    def script() -> None:
        stepping(run, make(run.optimizers[0]), 2)

    script()  # its scheduler is gone before the training is
    (sentence,) = told(run, tmp_path)
    assert f"has made {2 * STEPS} steps at the end of training, and was made for {planned}, so the" in sentence
    assert "run.progress" in sentence and "run.steps_planned(epochs)" in sentence


@pytest.mark.parametrize(
    ("make", "by_pass"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=14), False),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=15), False),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5), False),
        (lambda o: lr_scheduler.LinearLR(o, total_iters=3), False),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=100), True),
        (lambda o: lr_scheduler.StepLR(o, step_size=100), False),
    ],
)
def test_other_schedules_are_not(make: Any, by_pass: bool, tmp_path: Any) -> None:
    """Near their end, over for a while, in several cycles, or by passes."""
    run = make_run(tmp_path)
    scheduler = make(run.optimizers[0])
    stepping(run, scheduler, 2, by_pass)
    assert told(run, tmp_path) == []


def test_who_stops_early_is_not_told(tmp_path: Any) -> None:
    run = make_run(tmp_path)
    scheduler = lr_scheduler.CosineAnnealingLR(run.optimizers[0], T_max=14)
    for inputs, targets in run.batches(epochs=2):
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        scheduler.step()
        if run.iteration == 4:
            break
    assert told(run, tmp_path) == []


def test_few_steps_are_of_passes() -> None:
    assert missed_end("x", made=4, planned=50, rate=0.1, passes=2) == ""
    assert missed_end("x", made=5, planned=50, rate=0.1, passes=2)


def test_steps_planned_follow_the_plan_and_the_place() -> None:
    run = make_run()
    assert run.steps_planned(3) == 3 * STEPS
    train(run, iterations=10)
    assert run.steps_planned(3) == 3 * STEPS
    assert run.steps_planned(1) == 10
    run.close()
    twice = make_run(sizes=(16,))
    assert twice.steps_planned(3) == 3 * math.ceil(SAMPLES / 16)


def test_steps_of_a_stream_are_not_known_in_its_first_pass() -> None:
    model = nn.Linear(1, 1)
    shards = dynamix.shards(range(2), lambda shard: iter([(torch.ones(1), torch.ones(1))] * 4))
    run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), shards, batch_size=2)
    with pytest.raises(TrainingError, match="in the first pass over a stream"):
        run.steps_planned(3)


def test_the_schedules_of_the_page_end_with_the_training() -> None:
    page = (DOCS / "schedules.md").read_text(encoding="utf-8")
    (code,) = [part for part in page.split("```python\n")[1:] if part.startswith("from math import cos, pi")]
    torch.manual_seed(0)
    model, rates = nn.Linear(4, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    x = torch.randn(64, 4)
    names: dict[str, Any] = {
        "dynamix": dynamix,
        "model": model,
        "optimizer": optimizer,
        "loader": DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 8, shuffle=True),
        "LambdaLR": lr_scheduler.LambdaLR,
        "cross_entropy": nn.functional.cross_entropy,
    }
    exec(code.split("```")[0], names)
    names["run"].close()
    assert len(rates) == 32 and rates[0] == pytest.approx(0.002) and optimizer.param_groups[0]["lr"] == 0.0
    assert max(rates) > 0.19 and rates.index(max(rates)) == 4
    one_cycle = names["one_cycle"]
    assert [one_cycle(at) for at in (0, 0.3, 1)] == pytest.approx([1 / 25, 1, 4e-6])
    assert one_cycle(0.15) == pytest.approx(0.52) and one_cycle(0.65) == pytest.approx(0.5, abs=1e-4)


class Growing(torch.utils.data.Dataset[Any]):
    length = 40

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(1) * number, torch.ones(1)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_data_set_of_another_length_is_refused_at_the_next_pass(loaded: bool) -> None:
    data, model = Growing(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    given: Any = DataLoader(data, 8) if loaded else data
    run = dynamix.attach(model, optimizer, given, **({} if loaded else {"batch_size": 8}))
    with pytest.raises(TrainingError, match=r"has 48 samples at the beginning of epoch 1, and had 40 in attach\(\)"):
        for x, y in run.batches(epochs=3):
            run.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            data.length = 48
    assert run.iteration == 5
