"""What the hook sees of gradients that a script keeps, and of tensors of its own in `.grad`."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import make_run
from worker_hooks.torch.places import Places


@pytest.fixture
def net() -> nn.Module:
    return nn.Linear(3, 2)


def places_of(net: nn.Module, memory: NDArray[np.float32] | None = None) -> Places:
    parameters = list(net.parameters())
    memory = np.zeros(12, np.float32) if memory is None else memory
    return Places(torch.from_numpy(memory), parameters, ())


def delivered(net: nn.Module, places: Places) -> None:
    """As after a sum."""
    places.buffer.fill_(1.0)
    for parameter, view in zip(net.parameters(), places.views, strict=True):
        parameter.grad = view


def test_the_usual_ways_to_use_gradients_keep_none(net: nn.Module) -> None:
    places = places_of(net)
    optimizer = torch.optim.AdamW(net.parameters())
    assert places.look() == (set(), False)
    for to_none in (True, False, True):
        delivered(net, places)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        [p.grad.norm().item() for p in net.parameters()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        assert places.look() == (set(), False)
    net(torch.ones(1, 3)).sum().backward()
    assert places.look() == (set(), False), "what backward has made is nobody's"


@pytest.mark.parametrize(
    "keep",
    [
        lambda gradient: gradient,
        lambda gradient: gradient.view(-1),
        lambda gradient: gradient.detach(),
        lambda gradient: gradient.data,
        lambda gradient: gradient[0],
        lambda gradient: gradient.numpy(),
    ],
)
def test_what_a_script_keeps_is_seen_and_stays(net: nn.Module, keep: Callable[[torch.Tensor], Any]) -> None:
    memory = np.zeros(12, np.float32)
    places = places_of(net, memory)
    delivered(net, places)
    kept = keep(net.weight.grad)
    net.zero_grad()
    assert places.look() == (set(), True)
    if isinstance(kept, torch.Tensor):
        places.leave(memory)
        memory.fill(5.0)
        assert set(kept.flatten().tolist()) == {1.0}


def test_tensors_of_the_script_are_seen(net: nn.Module) -> None:
    places = places_of(net)
    own = torch.zeros(2, 3)
    net.weight.grad = own
    assert places.look() == ({0}, False)
    flat = torch.zeros(8)
    net.bias.grad = flat[:2]
    assert places.look() == ({0, 1}, False)


def test_memory_is_asked_for_before_it_is_used(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(TrainingError, match=r"no room for 48 bytes of them; keep copies \(parameter.grad.clone"):
        places_of(net).leave(None)


def test_gradients_live_in_the_buckets_until_a_script_keeps_one() -> None:
    run = make_run()
    (model,), (optimizer,) = run.models, run.optimizers
    parameter, bucket = next(model.parameters()), run.training.sums.exchange.buckets[0]
    kept = None
    for inputs, targets in run.batches(iterations=6):
        optimizer.zero_grad()
        run.backward(nn.functional.cross_entropy(model(inputs), targets))
        in_bucket = parameter.grad.untyped_storage().data_ptr() == bucket.buffer.untyped_storage().data_ptr()
        assert in_bucket == (run.iteration < 3)
        optimizer.step()
        if run.iteration == 3:
            kept = parameter.grad.clone(), parameter.grad
    assert kept is not None
    assert torch.equal(*kept)
