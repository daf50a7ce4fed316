"""Whoever reads or sets a late gradient has the sum: its place has NaN before."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.late_exchange import LateTraining

GRAD = torch._C.TensorBase.grad


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def loss_of(model: nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(torch.ones(4, 5)).square().sum()
    return found


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


def set_own(model: nn.Module, _: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)


def in_thread(model: nn.Module, _: torch.optim.Optimizer) -> None:
    thread = threading.Thread(target=lambda: [p.grad.mul_(2) for p in model.parameters()])
    thread.start()
    thread.join()


READERS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
    "clip_norm": lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clip_value": lambda model, _: nn.utils.clip_grad_value_(model.parameters(), 0.1),
    "norms": lambda model, _: [p.grad.norm() for p in model.parameters()],
    "changed": lambda model, _: [p.grad.mul_(0.5) for p in model.parameters()],
    "one_changed": lambda model, _: model[0].bias.grad.zero_(),
    "scaler": scaled,
    "own": set_own,
    "zeros": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "none": lambda model, _: model.zero_grad(),
    "deleted": lambda model, _: delattr(model[2].weight, "grad"),
    "by_name": lambda model, _: getattr(model[2].weight, "grad").mul_(3),  # noqa: B009
    "copied": lambda model, _: copy.deepcopy(model)[0].weight.grad,
    "saved": lambda model, _: torch.save([p.grad for p in model.parameters()], io.BytesIO()),
    "other_type": lambda model, _: model.double().float(),
    "kept": lambda model, _: model.__dict__.update(kept=[p.grad for p in model.parameters()]),
    "in_thread": in_thread,
    "nothing": lambda model, _: None,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_step_after_it_is_that_of_plain_torch(reader: str) -> None:
    plain, late = net(), net()
    expected, optimizer = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (plain, late))
    training = LateTraining(late)
    training.hook(optimizer)
    for number in range(3):
        loss_of(plain).backward()
        READERS[reader](plain, expected)
        training.backward(loss_of(late))
        assert bool(training.late) == (reader != "kept" or not number)
        READERS[reader](late, optimizer)
        assert [p.grad is None for p in late.parameters()] == [p.grad is None for p in plain.parameters()]
        expected.step()
        optimizer.step()
        for one, other in zip(late.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
        plain.zero_grad()
        late.zero_grad()
    assert torch.Tensor.grad is GRAD and "grad" not in vars(torch.Tensor), "the property is gone"


def test_people_hear_once_which_line_reads_them() -> None:
    late = net()
    optimizer = torch.optim.SGD(late.parameters(), lr=0.1)
    training = LateTraining(late)
    training.hook(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        training.backward(loss_of(late))
        nn.utils.clip_grad_norm_(late.parameters(), 1.0)
        optimizer.step()
    assert len(training.told) == 1 and training.told[0].startswith("test_late_gradients.py:")


def test_gradients_of_others_are_read_without_a_wait() -> None:
    late, teacher = net(), net()
    training = LateTraining(late)
    training.backward(loss_of(late))
    assert teacher[0].weight.grad is None
    teacher[0].weight.grad = torch.ones(7, 5)
    assert training.late and not training.told
    training.sums.complete()


@pytest.mark.parametrize("keep", [lambda gradient: gradient, lambda gradient: gradient.view(-1)[:1]])
def test_gradients_that_backward_shows_the_script_are_not_late(
    keep: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    late, kept = net(), []
    training = LateTraining(late)
    weight = late[2].weight
    late[0].register_full_backward_hook(lambda *_: kept.append(keep(weight.grad)))  # type: ignore[arg-type]
    training.backward(late(torch.ones(4, 5, requires_grad=True)).square().sum())
    assert not training.late and kept[0].isfinite().all()
    assert "by reference" in training.told[0]


def test_a_backward_pass_that_nobody_sees_is_refused() -> None:
    late = net()
    training = LateTraining(late)
    training.backward(loss_of(late))
    with pytest.raises(TrainingError, match=r"added to the gradient of 2\.bias while its sum was under way"):
        loss_of(late).backward()
    training.sums.complete()
