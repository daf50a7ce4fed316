"""A step that is taken later, bucket by bucket, is the plain step, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.late_exchange import LateTraining
from worker_hooks.torch.late_steps import KNOWN, refusal

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}, {"maximize": True}],
    "Adam": [{"amsgrad": True}, {"fused": True}, {"lr": torch.tensor(0.01)}],
    "AdamW": [{"fused": True, "amsgrad": True}],
    "Adagrad": [{"fused": True}, {"lr_decay": 0.1}],
    "RMSprop": [{"momentum": 0.5, "centered": True}],
    "NAdam": [{"decoupled_weight_decay": True}],
    "Muon": [{"nesterov": False}],
}
EVERYWHERE: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False, "weight_decay": 0.1}]
LACKS = {"Muon": {"foreach"}, "Rprop": {"weight_decay"}}
CASES = [
    (kind, {name: value for name, value in options.items() if name not in LACKS.get(kind.__name__, ())})
    for kind in sorted(KNOWN, key=lambda one: one.__name__)
    for options in [*EVERYWHERE, *OPTIONS.get(kind.__name__, ())]
]


class Net(nn.Module):
    """Its last layer takes part in every second call, and one is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            [nn.Linear(5, 7, bias=False), nn.Linear(7, 7, bias=False), nn.Linear(7, 3, bias=False)]
        )
        self.unused, self.calls = nn.Linear(3, 2, bias=False), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers[: 2 + self.calls % 2]:
            x = torch.tanh(layer(x))
        return x


def in_groups(net: Net, kind: Any, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Two groups, each with a rate of its own; a bucket of two parameters has one of each."""
    first, second, third = (layer.weight for layer in net.layers)
    rate = options.get("lr", 0.01)
    groups = [{"params": [first, third], "lr": rate * 2}, {"params": [second, net.unused.weight]}]
    optimizer: torch.optim.Optimizer = kind(groups, **{"lr": 0.01, **copy.deepcopy(options)})
    return optimizer


def batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(4, 5, generator=generator) for _ in range(5))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = net(x).square().sum()
    return found


def equal(one: Any, other: Any) -> bool:
    """Whether all tensors are equal in each bit, and all else too."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def state_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return net.state_dict(), optimizer.state_dict(), [p.grad for p in net.parameters()]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda one: getattr(one, "__name__", None) or "-".join(one))
@pytest.mark.parametrize("bucket_bytes", [1, 150])
def test_it_is_the_plain_step(kind: Any, options: dict[str, Any], bucket_bytes: int) -> None:
    plain, net = Net(), Net()
    expected, optimizer = (in_groups(one, kind, options) for one in (plain, net))
    training = LateTraining(net, bucket_bytes)
    parts = counted(training)
    training.hook(optimizer)
    for number, x in enumerate(batches()):
        loss_of(plain, x).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(net, x))
        assert training.late
        optimizer.step()
        assert training.late and training.has_stepped
        halve_rates(expected)
        halve_rates(optimizer)
        if number % 2:
            expected.zero_grad()
            optimizer.zero_grad()
            assert training.late, "a gradient that is dropped is not waited for"
    assert not training.told and parts
    assert equal(state_of(net, optimizer), state_of(plain, expected))
    assert not training.late


def halve_rates(optimizer: torch.optim.Optimizer) -> None:
    """As a schedule does it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].mul_(0.5)
        else:
            group["lr"] *= 0.5


def counted(training: LateTraining) -> list[str]:
    """Gets the name of every bucket that was waited for after `step()`."""
    waited: list[str] = []
    training.comm.on_wait = lambda name: waited.append(name) if training.has_stepped else None
    return waited


def test_each_layer_waits_for_its_own_weights() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training = LateTraining(net)
    training.hook(optimizer, factor=3.0)
    before = [p.detach().clone() for p in net.parameters()]
    first, second = batches_of(2)
    training.backward(loss_of(net, first), factor=0.5)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    events: list[str] = []
    training.comm.on_wait = events.append
    for number, layer in enumerate(net.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: events.append(f"layer {number}"))  # type: ignore[misc]
    training.begin_batch()
    net(second)
    buckets = [training.exchange.bucket_of(layer.weight) for layer in net.layers]
    names = [bucket.name for bucket in buckets if bucket is not None]
    assert events == [names[0], "layer 0", names[1], "layer 1"]
    gradient = net.layers[0].weight.grad
    assert gradient is not None and torch.allclose(net.layers[0].weight, before[0] - 3.0 * 0.1 * gradient)


def batches_of(number: int) -> list[torch.Tensor]:
    return [x for x, _ in zip(batches(), range(number), strict=False)]


def test_optimizers_step_one_after_the_other() -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    pairs = [[torch.optim.Adam(list(one.parameters())[at : at + 2], lr=0.1) for at in (0, 2)] for one in (plain, net)]
    for optimizer in pairs[1]:
        training.hook(optimizer)
    for x in batches():
        loss_of(plain, x).backward()
        training.begin_batch()
        training.backward(loss_of(net, x))
        for number in (0, 1):
            pairs[0][number].step()
            pairs[1][number].step()
        plain.zero_grad()
        net.zero_grad()
        assert training.late
    assert equal(net.state_dict(), plain.state_dict())


def test_optimizers_that_share_weights_step_one_after_the_other() -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    pairs = [[kind(one.parameters(), lr=0.1) for kind in (torch.optim.Adam, torch.optim.SGD)] for one in (plain, net)]
    for optimizer in pairs[1]:
        training.hook(optimizer)
    for x in batches():
        loss_of(plain, x).backward()
        training.begin_batch()
        training.backward(loss_of(net, x))
        for one in (*pairs[0], *pairs[1]):
            one.step()
    assert equal(net.state_dict(), plain.state_dict())


def test_a_setting_that_is_changed_in_place_is_that_of_the_next_step() -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    expected, optimizer = (
        torch.optim.Adam([{"params": one.parameters(), "betas": [0.9, 0.99]}], lr=0.1) for one in (plain, net)
    )
    training.hook(optimizer)
    for x in batches():
        loss_of(plain, x).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        for one in (expected, optimizer):
            one.param_groups[0]["betas"][0] *= 0.5
    assert not training.told and equal(state_of(net, optimizer), state_of(plain, expected))


@pytest.mark.parametrize(
    "around",
    [
        torch.inference_mode,
        torch.no_grad,
        partial(torch.autocast, "cpu"),
        partial(FlopCounterMode, display=False),
        partial(torch.device, "meta"),
    ],
)
def test_what_is_around_a_reader_is_not_around_the_step(around: Callable[[], Any]) -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    expected, optimizer = (torch.optim.Muon(one.parameters(), lr=0.1) for one in (plain, net))
    training.hook(optimizer)
    for x in batches():
        loss_of(plain, x).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        before = len(training.late)
        with around():
            net.layers[0](x)
            assert 0 < len(training.late) < before
    assert equal(state_of(net, optimizer), state_of(plain, expected))


class Own(torch.optim.SGD):
    """Of the script."""


def with_hook(net: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def with_own_class(net: nn.Module) -> torch.optim.Optimizer:
    net.layers[0].weight = SpecialParameter(net.layers[0].weight.detach())  # type: ignore[union-attr,index]
    return torch.optim.SGD(net.parameters(), lr=0.1)


def with_a_parameter_twice(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([*net.parameters(), *net.parameters()], lr=0.1)


class SpecialParameter(nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda net: Own(net.parameters(), lr=0.1), "no optimizer of torch.optim"),
        (with_hook, "hooks of the script"),
        (with_own_class, "parameters of several kinds"),
        (with_a_parameter_twice, "a parameter twice"),
    ],
)
def test_where_it_might_differ_it_waits_for_all_and_says_so_once(
    make: Callable[[nn.Module], torch.optim.Optimizer], reason: str
) -> None:
    net = Net()
    optimizer = make(net)
    training = LateTraining(net)
    parts = counted(training)
    training.hook(optimizer)
    assert reason in refusal(optimizer)
    for x in batches():
        optimizer.zero_grad()
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        assert not training.late
    assert not parts and len(training.told) == 1 and reason in training.told[0]
    assert all(p.isfinite().all() for p in net.parameters())


def test_steps_that_can_be_differentiated_are_made_at_once() -> None:
    assert "differentiable" in refusal(torch.optim.SGD(Net().parameters(), lr=0.1, differentiable=True))


def test_a_closure_computes_all_gradients_first() -> None:
    plain, net = Net(), Net()
    expected, optimizer = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (plain, net))
    training = LateTraining(net)
    training.hook(optimizer)
    for x in batches():
        expected.zero_grad()
        loss_of(plain, x).backward()
        expected.step()

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, x)
            training.backward(loss)
            return loss

        optimizer.step(closure)
    assert equal(net.state_dict(), plain.state_dict())
    assert len(training.told) == 1 and "closure" in training.told[0]


def test_after_ctrl_c_in_a_wait_the_step_is_still_complete() -> None:
    plain, net = Net(), Net()
    expected, optimizer = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (plain, net))
    training, x = LateTraining(net), next(batches())
    training.hook(optimizer)
    loss_of(plain, x).backward()
    expected.step()
    training.backward(loss_of(net, x))
    optimizer.step()
    presses = iter([False, True])

    def press(name: str) -> None:
        if next(presses, False):
            raise KeyboardInterrupt

    training.comm.on_wait = press
    training.begin_batch()
    with pytest.raises(KeyboardInterrupt):
        net(x)
    assert equal(state_of(net, optimizer), state_of(plain, expected))


def test_gradients_that_ctrl_c_has_cut_short_are_not_used() -> None:
    net = Net()
    training = LateTraining(net)
    training.backward(loss_of(net, next(batches())), factor=2.0)
    bucket = training.late[0]

    def press(factor: float) -> None:
        raise KeyboardInterrupt

    bucket.scale = press  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.sums.complete()
    with pytest.raises(TrainingError, match="interrupted while it got its gradients"):
        print([p.grad for p in net.parameters()])
