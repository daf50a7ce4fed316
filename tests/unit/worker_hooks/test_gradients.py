"""Invariant 1, the pure part: the exchanged gradient is that of one process on the concatenated batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynamix_ps.comm.torch_buffers import TorchBuffers
from dynamix_ps.errors import TrainingError
from worker_hooks.torch.gradients import TorchExchange, layout_buckets
from worker_hooks.trailer import Contribution, GlobalView


class SumInMemory(TorchBuffers):
    """Workers of one process; a handle is the name, and the last push makes everybody's sum."""

    name = "memory"

    def __init__(self, rank: int, others: list[SumInMemory]) -> None:
        self.rank, self.others = rank, others
        self.pushed: dict[str, torch.Tensor] = {}
        self.order: list[str] = []

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.others)

    def init(self) -> None: ...
    def declare(self, name: str) -> None: ...
    def shutdown(self) -> None: ...

    def version(self) -> str:
        return "test"

    def push_pull(self, name: str, buffer: torch.Tensor) -> int:
        self.pushed[name] = buffer
        self.order.append(name)
        if all(name in other.pushed for other in self.others):
            total = torch.stack([other.pushed.pop(name) for other in self.others]).sum(0)
            for other in self.others:
                other.received[name].copy_(total)
        return 0

    received: dict[str, torch.Tensor]

    def _wait(self, handle: int, timeout_s: float) -> bool:
        return True


def make_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def exchange_all(
    nets: list[nn.Module], data: list[tuple[torch.Tensor, torch.Tensor]], bucket_bytes: int
) -> list[GlobalView]:
    comms: list[SumInMemory] = []
    for rank in range(len(nets)):
        comms.append(SumInMemory(rank, comms))
    exchanges = [TorchExchange(net, comm, bucket_bytes, "t") for net, comm in zip(nets, comms, strict=True)]
    for comm, exchange in zip(comms, exchanges, strict=True):
        comm.received = {bucket.name: bucket.buffer for bucket in exchange.buckets}
    for net, exchange, (x, y) in zip(nets, exchanges, data, strict=True):
        exchange.begin(len(x), measure_norm=True)
        if len(x):
            nn.functional.cross_entropy(net(x), y).backward()
        exchange.send_rest(lambda grad_sq, n=len(x): Contribution(n, 1.0, 0.0, grad_sq, 0, 0.0))
    return [exchange.receive(lambda waited_s: None) for exchange in exchanges]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 17), min_size=1, max_size=5).filter(lambda s: sum(s) > 0),
    bucket_bytes=st.sampled_from([1, 300, 4_000_000]),
)
def test_the_sum_is_the_gradient_of_one_process(sizes, bucket_bytes):
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randint(0, 3, (n,), generator=generator))
        for n in sizes
    ]
    nets = [make_net() for _ in sizes]
    views = exchange_all(nets, data, bucket_bytes)
    alone = make_net()
    nn.functional.cross_entropy(alone(torch.cat([x for x, _ in data])), torch.cat([y for _, y in data])).backward()
    for net, view in zip(nets, views, strict=True):
        assert view.samples == sum(sizes)
        for mine, wanted in zip(net.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine.grad, wanted.grad, rtol=1e-9, atol=1e-12)


def test_every_workers_norm_travels_in_the_buffer():
    data = [(torch.randn(n, 6, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (3, 8)]
    squares = []
    for x, y in data:
        net = make_net()
        nn.functional.cross_entropy(net(x), y).backward()
        squares.append(sum(float((p.grad**2).sum()) for p in net.parameters()))
    for view in exchange_all([make_net(), make_net()], data, 300):
        assert view.grad_sq == pytest.approx(squares)
        assert view.worker_samples == (3, 8)


def test_full_buckets_leave_while_backward_runs_and_the_tail_leaves_last():
    net, comms = make_net(), []
    comms.append(SumInMemory(0, comms))
    exchange = TorchExchange(net, comms[0], 1, "t")
    comms[0].received = {bucket.name: bucket.buffer for bucket in exchange.buckets}
    exchange.begin(4, measure_norm=False)
    net(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert comms[0].order == [b.name for b in exchange.buckets[:-1]]
    exchange.send_rest(lambda grad_sq: Contribution(4, 1.0, 0.0, grad_sq, 0, 0.0))
    assert comms[0].order[-1] == exchange.buckets[-1].name


def test_every_worker_sends_in_the_same_order_whatever_its_model_does_first():
    """A ring knows no names: what is sent as number 2 is summed with the others' number 2."""
    orders = []
    for samples, used in ((4, ("first", "second")), (4, ("second", "first")), (0, ()), (4, ("second",))):
        torch.manual_seed(0)
        net = nn.ModuleDict({name: nn.Linear(2, 1) for name in ("first", "second", "last")}).double()
        comms: list[SumInMemory] = []
        comms.append(SumInMemory(0, comms))
        exchange = TorchExchange(net, comms[0], 1, "t")
        comms[0].received = {bucket.name: bucket.buffer for bucket in exchange.buckets}
        exchange.begin(samples, measure_norm=False)
        for name in used:
            net[name](torch.ones(4, 2, dtype=torch.float64)).mean().backward()
        exchange.send_rest(lambda grad_sq, samples=samples: Contribution(samples, 1.0, 0.0, grad_sq, 0, 0.0))
        orders.append(comms[0].order)
    assert orders == [[bucket.name for bucket in exchange.buckets]] * 4


def test_a_parameter_without_gradient_counts_as_zero():
    net = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    comms: list[SumInMemory] = []
    comms.append(SumInMemory(0, comms))
    exchange = TorchExchange(net, comms[0], 4_000_000, "t")
    comms[0].received = {bucket.name: bucket.buffer for bucket in exchange.buckets}
    exchange.buckets[0].buffer.fill_(7.0)
    exchange.begin(3, measure_norm=False)
    net["used"](torch.ones(3, 2)).mean().backward()
    exchange.send_rest(lambda grad_sq: Contribution(3, 1.0, 0.0, grad_sq, 0, 0.0))
    exchange.receive(lambda waited_s: None)
    assert float(net["unused"].weight.grad.abs().sum()) == 0
    assert net["used"].bias.grad.item() == pytest.approx(1.0)


def test_buckets_keep_reverse_order_size_and_type():
    parameters = [
        nn.Parameter(torch.zeros(n, dtype=d)) for n, d in [(4, torch.float32), (4, torch.float32), (2, torch.float64)]
    ]
    buckets = layout_buckets(parameters, 16, 3, "p")
    assert [sum(view.numel() for view in b.views.values()) for b in buckets] == [2, 4, 4]
    assert [b.buffer.numel() for b in buckets] == [2, 4, 7]
    assert buckets[0].buffer.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_that_cannot_be_summed_are_refused(dtype):
    with pytest.raises(TrainingError, match="keep the parameters in float32"):
        layout_buckets([nn.Parameter(torch.zeros(2, dtype=dtype))], 16, 3, "p")


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(TrainingError, match="nothing to train"):
        layout_buckets([nn.Parameter(torch.zeros(2), requires_grad=False)], 16, 3, "p")


def test_what_was_accumulated_before_counts_even_if_the_last_backward_does_not_touch_it():
    """Micro-batches: plain backward first, then the one that is exchanged, through another part of the model."""
    net = nn.ModuleDict({"first": nn.Linear(2, 1), "second": nn.Linear(2, 1)})
    comms: list[SumInMemory] = []
    comms.append(SumInMemory(0, comms))
    exchange = TorchExchange(net, comms[0], 4_000_000, "t")
    comms[0].received = {bucket.name: bucket.buffer for bucket in exchange.buckets}
    net["first"](torch.ones(3, 2)).mean().backward()
    exchange.begin(3, measure_norm=False)
    net["second"](torch.ones(3, 2)).mean().backward()
    exchange.send_rest(lambda grad_sq: Contribution(3, 1.0, 0.0, grad_sq, 0, 0.0))
    exchange.receive(lambda waited_s: None)
    assert net["first"].bias.grad.item() == pytest.approx(1.0)
    assert net["second"].bias.grad.item() == pytest.approx(1.0)
