"""Whoever reads a weight that is late has the weight after its step."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel

from tests.unit.worker_hooks.late_exchange import LateTraining
from worker_hooks.torch import compiled, late_weights
from worker_hooks.torch.late_weights import LateWeight, _owners, _undo


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have loaded."""
    monkeypatch.setattr(compiled, "is_used", lambda: False)


class Twice(torch.autograd.Function):
    """Of the script."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 7), nn.LSTM(7, 3)
        self.own = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.tanh(self.first(x)))[0] * self.own
        return found


def loss_of(model: nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(torch.ones(4, 5)).square().sum()
    return found


def set_data(model: Model) -> None:
    model.own.data = model.own.data * 2


def averaged(model: Model) -> list[torch.Tensor]:
    average = AveragedModel(model)
    average.update_parameters(model)
    return list(average.parameters())


def in_thread(model: Model) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(parameters_to_vector(model.parameters())))
    thread.start()
    thread.join()
    return found


def in_child(model: Model) -> bytes:
    end, begin = os.pipe()
    if not os.fork():
        os.write(begin, model.own.detach().numpy().tobytes())
        os._exit(0)
    os.wait()
    with os.fdopen(end, "rb") as pipe:
        os.close(begin)
        return pipe.read()


def saved(model: Model) -> bytes:
    file = io.BytesIO()
    torch.save(list(model.parameters()), file)
    return file.getvalue()


def saved_script(module: nn.Module) -> list[torch.Tensor]:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return list(torch.jit.load(file).state_dict().values())


READERS: dict[str, Callable[[Model], Any]] = {
    "forward": lambda model: model(torch.ones(1, 5)),
    "loss with weights": lambda model: sum(p.square().sum() for p in model.parameters()),
    "one": lambda model: model.own.sum(),
    "state_dict": lambda model: list(model.state_dict().values()),
    "deepcopy": lambda model: list(copy.deepcopy(model).parameters()),
    "pickle": lambda model: list(pickle.loads(pickle.dumps(model)).parameters()),
    "save": saved,
    "vector": lambda model: parameters_to_vector(model.parameters()),
    "data": lambda model: [p.data for p in model.parameters()],
    "numpy": lambda model: [p.detach().numpy().tolist() for p in model.parameters()],
    "item": lambda model: [p.flatten()[0].item() for p in model.parameters()],
    "text": lambda model: [repr(p) for p in model.parameters()],
    "averaged": averaged,
    "norm of all": lambda model: nn.utils.get_total_norm(model.parameters()),
    "functional": lambda model: torch.func.functional_call(model, dict(model.named_parameters()), torch.ones(1, 5)),
    "transform": lambda model: torch.func.grad(lambda own: own.square().sum())(model.own),
    "vmap": lambda model: torch.vmap(lambda own: own * 2)(model.own),
    "vmap of others": lambda model: torch.vmap(lambda x: x @ model.own)(torch.ones(2, 3)),
    "dual": lambda model: torch.func.jvp(lambda own: own * 2, (model.own,), (torch.ones(3),)),
    "function": lambda model: Twice.apply(model.own),
    "copied into": lambda model: torch.zeros(3).copy_(model.own.detach()),
    "frozen": lambda model: model.own.requires_grad_(False).requires_grad_(True),
    "frozen by the attribute": lambda model: (
        setattr(model.own, "requires_grad", False) or model.own.requires_grad_(True)
    ),
    "changed": lambda model: nn.init.constant_(model.own, 0.5),
    "clamped": lambda model: model.own.data.clamp_(max=0.9),
    "data set": set_data,
    "float64": lambda model: list(model.double().float().parameters()),
    "traced": lambda model: torch.jit.trace(model.first, torch.ones(1, 5))(torch.ones(1, 5)),
    "scripted": lambda model: torch.jit.script(model.first)(torch.ones(1, 5)),
    "scripted, saved": lambda model: saved_script(model.first),
    "iterated": lambda model: [float(one) for one in model.own],
    "in_thread": in_thread,
    "in_child": in_child,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_the_weight_after_its_step(reader: str) -> None:
    plain, late = Model(), Model()
    expected, optimizer = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (plain, late))
    training = LateTraining(late)
    training.hook(optimizer)
    for _ in range(3):
        expected.zero_grad()
        loss_of(plain).backward()
        expected.step()
        optimizer.zero_grad()
        training.begin_batch()
        training.backward(loss_of(late))
        optimizer.step()
        assert training.late and type(late.own) is LateWeight
        assert alike(READERS[reader](late), READERS[reader](plain))
    assert all(map(torch.equal, late.parameters(), plain.parameters()))
    assert {type(p) for p in late.parameters()} == {nn.Parameter}
    assert not _owners and not _undo


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and type(one) in (torch.Tensor, nn.Parameter)
    return bool(one == other)


def test_what_no_step_changes_is_told_without_a_wait() -> None:
    model = Model()
    training = LateTraining(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training.hook(optimizer)
    training.backward(loss_of(model))
    optimizer.step()
    due = len(training.late)
    for p in model.parameters():
        assert p.shape.numel() == p.numel() and p.dim() == p.ndim and p.requires_grad and p.dtype == torch.float32
        assert isinstance(p, nn.Parameter) and p.device.type == "cpu" and p in {p}
    model.eval()
    optimizer.zero_grad()
    assert len(training.late) == due > 0
    training.sums.complete()


def test_people_hear_once_who_reads_weights_between_a_step_and_the_next_batch() -> None:
    model = Model()
    training = LateTraining(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training.hook(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        training.begin_batch()
        training.backward(loss_of(model))
        optimizer.step()
        parameters_to_vector(model.parameters())
    assert len(training.told) == 1 and training.told[0].startswith("test_late_weights.py:")
    assert "reads weights between" in training.told[0]


def keep_array(model: Model) -> Any:
    return model.own.detach().numpy()


def keep_view(model: Model) -> Any:
    return model.own.data[:1]


def keep_script(model: Model) -> Any:
    return torch.jit.script(model.first)


def share(model: Model) -> None:
    model.share_memory()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (keep_array, "by other tensors"),
        (keep_view, "by other tensors"),
        (keep_script, "modules of torch.jit"),
        (share, "other processes"),
    ],
)
def test_where_weights_may_be_read_unseen_the_step_is_made_at_once(
    prepare: Callable[[Model], Any], reason: str
) -> None:
    plain, model = Model(), Model()
    training = LateTraining(model)
    expected, optimizer = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, model))
    training.hook(optimizer)
    kept = None
    for number in range(3):
        loss_of(plain).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(model))
        optimizer.step()
        assert bool(training.late) == (kept is None)
        if not number:
            kept = prepare(model) if prepare is not share else prepare(model) or ()
        plain.zero_grad()
        model.zero_grad()
    assert len([one for one in training.told if reason in one]) == 1
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.parametrize("why", ["torch.compile", "does not tell who knows"])
def test_where_torch_does_not_tell_who_reads_weights_none_is_late(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "torch.compile":
        monkeypatch.setattr(compiled, "is_used", lambda: True)
    else:
        monkeypatch.setattr(late_weights, "_TELLS_USERS", False)
    model = Model()
    training = LateTraining(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training.hook(optimizer)
    training.backward(loss_of(model))
    optimizer.step()
    assert not training.late and why in training.told[0]


def test_whoever_compiles_after_a_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_models: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", compiled_models.append)
    model = Model()
    training = LateTraining(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training.hook(optimizer)
    training.backward(loss_of(model))
    optimizer.step()
    assert training.late
    torch.compile(model)
    assert not training.late and compiled_models == [model]


@pytest.mark.parametrize("layers", [1, 2])
def test_attention_in_an_evaluation_is_computed_as_without_late_weights(layers: int) -> None:
    """Torch has other kernels for it, which it leaves out where weights have a class of their own."""
    found = []
    for late in (False, True):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        model = layer if layers == 1 else nn.TransformerEncoder(layer, layers)
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(3, 6, 8)
        training = LateTraining(model)
        if late:
            training.hook(optimizer)
        training.backward(model(x).square().sum())
        optimizer.step()
        assert bool(training.late) == late
        model.eval()
        with torch.no_grad():
            found.append(model(x))
    assert torch.equal(*found)
