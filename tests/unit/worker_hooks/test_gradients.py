"""Invariant 1, the pure part: the exchanged gradient is that of one process on the concatenated batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynamix_ps.comm.base import Comm
from dynamix_ps.comm.torch_buffers import tensor_of, without_beginning
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange import trailer
from worker_hooks.exchange.trailer import Contribution, GlobalView
from worker_hooks.exchange.units import factor_after_sum, weight_before_sum
from worker_hooks.torch.gradients import TorchExchange, check_types, layout_buckets
from worker_hooks.workers import Workers


class SumInMemory(Comm):
    """Workers of one process; a handle is the name, and the last push makes everybody's sum."""

    name = "memory"

    def __init__(self, rank: int, others: list[SumInMemory]) -> None:
        self.rank, self.others = rank, others
        self.pushed: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self.order: list[str] = []
        self.priorities: dict[str, int] = {}

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.others)

    def init(self) -> None: ...
    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None:
        self.priorities[name] = priority

    def shutdown(self) -> None: ...

    def version(self) -> str:
        return "test"

    def _buffer(self, values: np.ndarray) -> torch.Tensor:
        return tensor_of(values)

    def push_pull(self, name: str, buffer: torch.Tensor, begin: int = 0) -> int:
        return self.push_pull_into(name, buffer, buffer, begin)

    def push_pull_into(self, name: str, buffer: torch.Tensor, into: torch.Tensor, begin: int = 0) -> int:
        assert (into is not buffer) == self.sends_again, "a copy too many, or a buffer"
        self.pushed[name] = buffer, into, begin
        self.order.append(name)
        if all(name in other.pushed for other in self.others):
            parts = [other.pushed.pop(name) for other in self.others]
            total = sum(without_beginning(values, first) for values, _, first in parts)
            for _, place, first in parts:
                place[first:] = total[first:]
        return 0

    def _wait(self, handle: int, timeout_s: float) -> bool:
        return True


@pytest.fixture(scope="module", params=[False, True], ids=["in place", "elsewhere"], autouse=True)
def sends_again(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Where sums go: to the place of what was sent, or to another one, as in an elastic job."""
    SumInMemory.sends_again = request.param
    yield request.param
    SumInMemory.sends_again = False


def make_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def exchange_of(net: nn.Module, comm: SumInMemory, bucket_bytes: int) -> TorchExchange:
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]
    exchange = TorchExchange(dict(net.named_parameters()), norms, comm, bucket_bytes, "t")
    return exchange


def alone() -> SumInMemory:
    comms: list[SumInMemory] = []
    comms.append(SumInMemory(0, comms))
    return comms[0]


def mine(samples: int, grad_sq: float = math.nan) -> Contribution:
    return Contribution(samples, 1.0, 0.0, grad_sq, 0, 0.0, doing=0, weights=(0.0, 0.0))


def exchange_all(
    nets: list[nn.Module], data: list[tuple[torch.Tensor, torch.Tensor]], bucket_bytes: int
) -> list[GlobalView]:
    comms: list[SumInMemory] = []
    for rank in range(len(nets)):
        comms.append(SumInMemory(rank, comms))
    exchanges = [exchange_of(net, comm, bucket_bytes) for net, comm in zip(nets, comms, strict=True)]
    total = sum(len(x) for x, _ in data)
    for net, exchange, (x, y) in zip(nets, exchanges, data, strict=True):
        exchange.begin(len(x) / total, measure_norm=True)
        if len(x):
            nn.functional.cross_entropy(net(x), y).backward()
        exchange.send_rest(lambda grad_sq, n=len(x): [mine(n, grad_sq)])
    views = [exchange.receive(lambda waited_s: None) for exchange in exchanges]
    for exchange in exchanges:
        exchange.deliver()
    return views


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
    single = make_net()
    nn.functional.cross_entropy(single(torch.cat([x for x, _ in data])), torch.cat([y for _, y in data])).backward()
    for net, view in zip(nets, views, strict=True):
        assert view.samples == sum(sizes)
        for got, wanted in zip(net.parameters(), single.parameters(), strict=True):
            assert torch.allclose(got.grad, wanted.grad, rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=2, max_size=4).filter(
        lambda counts: any(map(any, counts))
    ),
    bucket_bytes=st.sampled_from([1, 300, 4_000_000]),
)
def test_weighted_by_units_it_is_that_of_one_process_too(counts, bucket_bytes):
    """Every sample has so many units; the loss of a worker that has none at all is NaN."""
    samples, comms = sum(map(len, counts)), []
    comms += [SumInMemory(rank, comms) for rank in range(len(counts))]
    nets = [make_net() for _ in counts]
    exchanges = [exchange_of(net, comm, bucket_bytes) for net, comm in zip(nets, comms, strict=True)]
    generator, every = torch.Generator().manual_seed(1), []
    for net, exchange, of_worker in zip(nets, exchanges, counts, strict=True):
        x = torch.randn(len(of_worker), 6, generator=generator, dtype=torch.float64)
        units = torch.tensor(of_worker, dtype=torch.float64)
        every.append((x, units))
        weight = weight_before_sum(float(units.sum()), samples, len(counts))
        exchange.begin(weight, measure_norm=True, share=len(of_worker) / samples)
        ((net(x).square().sum(1) * units).sum() / units.sum()).backward()
        own = mine(len(of_worker))._replace(units=float(units.sum()))
        exchange.send_rest(lambda grad_sq, own=own: [own._replace(grad_sq=grad_sq)])
    views = [exchange.receive(lambda waited_s: None) for exchange in exchanges]
    for exchange, view in zip(exchanges, views, strict=True):
        exchange.deliver(factor_after_sum(view, samples, iteration=0))
    single, x, units = make_net(), torch.cat([x for x, _ in every]), torch.cat([units for _, units in every])
    ((single(x).square().sum(1) * units).sum() / units.sum()).backward()
    for net, view in zip(nets, views, strict=True):
        assert [math.isnan(square) for square in view.grad_sq] == [not any(of_worker) for of_worker in counts]
        for got, wanted in zip(net.parameters(), single.parameters(), strict=True):
            assert torch.allclose(got.grad, wanted.grad, rtol=1e-9, atol=1e-12)


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


def test_full_buckets_leave_while_backward_runs_and_the_trailer_leaves_last():
    net, comm = make_net(), alone()
    exchange = exchange_of(net, comm, 1)
    exchange.begin(1.0, measure_norm=False)
    net(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert comm.order == [b.name for b in exchange.buckets[:-1]]
    exchange.send_rest(lambda grad_sq: [mine(4)])
    assert comm.order[-1] == exchange.buckets[-1].name
    assert sorted(comm.order, key=comm.priorities.__getitem__) == comm.order[::-1], "what leaves last is needed first"


def test_every_worker_sends_in_the_same_order_whatever_its_model_does_first():
    """A ring knows no names: what is sent as number 2 is summed with the others' number 2. An announcement too."""
    orders = []
    for weight, used in ((0.4, ("first", "second")), (0.4, ("second", "first")), (0.0, ()), (0.2, ("second",))):
        torch.manual_seed(0)
        net, comm = nn.ModuleDict({name: nn.Linear(2, 1) for name in ("first", "second", "last")}).double(), alone()
        exchange = exchange_of(net, comm, 1)
        exchange.begin(weight, measure_norm=False)
        for name in used:
            net[name](torch.ones(4, 2, dtype=torch.float64)).mean().backward()
        exchange.send_rest(lambda grad_sq: [mine(4)])
        orders.append(comm.order)
    comm = alone()
    exchange = exchange_of(net, comm, 1)
    exchange.announce(mine(0), lambda waited_s: None)
    assert [*orders, comm.order] == [[bucket.name for bucket in exchange.buckets]] * 5


@pytest.mark.parametrize("names", [("used", "unused"), ("unused", "used")])
@pytest.mark.parametrize("bucket_bytes", [1, 4_000_000])
def test_a_parameter_that_nobody_has_a_gradient_of_keeps_none(bucket_bytes, names):
    net, comm = nn.ModuleDict({name: nn.Linear(2, 1) for name in names}), alone()
    exchange = exchange_of(net, comm, bucket_bytes)
    exchange.buckets[0].buffer.fill_(7.0)
    exchange.begin(1.0, measure_norm=False)
    net["used"](torch.ones(3, 2)).mean().backward()
    exchange.send_rest(lambda grad_sq: [mine(3)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert net["unused"].weight.grad is None
    assert net["used"].bias.grad.item() == pytest.approx(1.0)


def test_a_worker_without_a_gradient_adds_nothing_to_those_of_the_others():
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    nets = [nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "ab"}) for _ in comms]
    exchanges = [exchange_of(net, comm, 4_000_000) for net, comm in zip(nets, comms, strict=True)]
    for used in ("ab", "a"):  # by worker 0; its gradient of `b` in the first sum is not in the second one
        for net, exchange, names in zip(nets, exchanges, (used, "ab"), strict=True):
            net.zero_grad()
            exchange.begin(0.5, measure_norm=False)
            sum(net[name](torch.full((2, 1), 3.0)).mean() for name in names).backward()
            exchange.send_rest(lambda grad_sq: [mine(2)])
        for exchange in exchanges:
            exchange.receive(lambda waited_s: None)
            exchange.deliver()
    assert [[net[name].weight.grad.item() for name in "ab"] for net in nets] == [[3.0, 1.5]] * 2


@pytest.mark.parametrize("bucket_bytes", [4, 4_000_000])
def test_a_worker_has_what_only_the_other_one_has_a_gradient_of_in_whichever_sum(bucket_bytes):
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    nets = [nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "abc"}) for _ in comms]
    exchanges = [exchange_of(net, comm, bucket_bytes) for net, comm in zip(nets, comms, strict=True)]
    for used in (("b", "b"), ("ab", "b"), ("b", "ab"), ("ab", "b")):
        for net, exchange, names in zip(nets, exchanges, used, strict=True):
            net.zero_grad()
            exchange.begin(0.5, measure_norm=False)
            sum(net[name](torch.full((2, 1), 3.0)).mean() for name in names).backward()
            exchange.send_rest(lambda grad_sq: [mine(2)])
        for exchange in exchanges:
            exchange.receive(lambda waited_s: None)
            exchange.deliver()
        gradients = [[net[name].weight.grad for name in "abc"] for net in nets]
        first = torch.tensor([[1.5]]) if "ab" in used else None
        assert gradients == [[first, torch.tensor([[3.0]]), None]] * 2


def test_a_gradient_of_a_worker_without_samples_is_dropped():
    net, comm = nn.Linear(2, 1), alone()
    exchange = exchange_of(net, comm, 4_000_000)
    net(torch.ones(2, 2)).mean().backward()  # of samples that count for nothing
    exchange.begin(0.0, measure_norm=False)
    exchange.send_rest(lambda grad_sq: [mine(0)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert net.weight.grad is None


def test_what_was_sent_stays_until_the_sum_is_there_and_the_sum_is_what_the_script_changes(sends_again):
    net, comms = make_net(), []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    exchange, other = (exchange_of(one, comm, 300) for one, comm in zip((net, make_net(1)), comms, strict=True))
    sent = []
    for number, one in enumerate((exchange, other)):
        one.begin(0.5, measure_norm=True)
        if one is exchange:
            net(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
        one.send_rest(lambda grad_sq: [mine(4)])
        if number == 0:
            sent = [bucket.own.clone() for bucket in exchange.buckets]
    exchange.receive(lambda waited_s: None)
    exchange.deliver(factor=2.0)
    grads = [parameter.grad.clone() for parameter in net.parameters()]
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    net.zero_grad(set_to_none=False)
    assert any(grad.any() for grad in grads)
    assert exchange.squared_norm() == 0
    stayed = [torch.equal(before, bucket.own) for before, bucket in zip(sent, exchange.buckets, strict=True)]
    assert stayed == [sends_again] * len(sent)


def test_an_announcement_leaves_gradients_alone():
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    nets = [make_net(), make_net()]
    exchanges = [exchange_of(net, comm, 300) for net, comm in zip(nets, comms, strict=True)]
    for net, exchange in zip(nets, exchanges, strict=True):
        exchange.begin(0.5, measure_norm=False)
        net(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
        exchange.send_rest(lambda grad_sq: [mine(4)])
    for exchange in exchanges:
        exchange.receive(lambda waited_s: None)
        exchange.deliver()
    before = [[parameter.grad.clone() for parameter in net.parameters()] for net in nets]
    for exchange in exchanges:
        exchange.announce(mine(0), lambda waited_s: None)
    for net, gradients in zip(nets, before, strict=True):
        assert all(torch.equal(b, p.grad) for b, p in zip(gradients, net.parameters(), strict=True))


def test_batches_of_several_weights_add_up():
    """Accumulation over two batches in which this worker has other shares, one of them none at all."""
    net, comm = nn.Linear(2, 1, bias=False).double(), alone()
    exchange = exchange_of(net, comm, 4_000_000)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    net(x).mean().backward()
    exchange.carry(0.25, 0.0)
    net(3 * x).mean().backward()
    exchange.carry(0.0, 0.5)  # the batch before counted for nothing
    assert exchange.has_local
    exchange.begin(0.5, measure_norm=False)
    net(10 * x).mean().backward()
    exchange.send_rest(lambda grad_sq: [mine(1)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert torch.allclose(net.weight.grad, 0.25 * x + 0.5 * 10 * x)
    assert not exchange.has_local


def test_an_earlier_batch_keeps_its_weight_beside_a_batch_of_another_weight():
    net = nn.Linear(2, 1, bias=False).double()
    exchange, x = exchange_of(net, alone(), 4_000_000), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    net(x).mean().backward()
    exchange.carry(0.25, 0.5)
    exchange.begin(0.5, measure_norm=False)
    net(10 * x).mean().backward()
    exchange.send_rest(lambda grad_sq: [mine(1)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert torch.allclose(net.weight.grad, 0.25 * x + 0.5 * 10 * x)


def test_a_gradient_changed_before_the_sum_is_noticed():
    net, comm = nn.Linear(2, 1).double(), alone()
    exchange = exchange_of(net, comm, 4_000_000)
    net(torch.ones(1, 2, dtype=torch.float64)).mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    with pytest.raises(TrainingError, match=r"gradient of \w+ was changed between loss\.backward\(\) and"):
        exchange.begin(1.0, measure_norm=False)
    net.zero_grad(set_to_none=False)
    exchange.begin(1.0, measure_norm=False)


def test_running_statistics_become_the_weighted_mean():
    nets = [nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).double() for _ in range(2)]
    for net, x in zip(nets, ([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]), strict=True):
        net[0].momentum = 1.0
        net(torch.tensor(x, dtype=torch.float64))
    data = [(torch.zeros(n, 2, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)) for n in (1, 3)]
    means = [net[0].running_mean.clone() for net in nets]
    comms: list[SumInMemory] = []
    comms += [SumInMemory(0, comms), SumInMemory(1, comms)]
    exchanges = [exchange_of(net, comm, 4_000_000) for net, comm in zip(nets, comms, strict=True)]
    for exchange, (x, _) in zip(exchanges, data, strict=True):
        exchange.begin(len(x) / 4, measure_norm=False)
        exchange.send_rest(lambda grad_sq: [mine(1)])
    for exchange in exchanges:
        exchange.receive(lambda waited_s: None)
        exchange.deliver()
    for net in nets:
        assert torch.allclose(net[0].running_mean, 0.25 * means[0] + 0.75 * means[1])


def test_who_adds_nothing_has_its_samples_of_the_weights_as_the_sum_has_those_of_the_others():
    """Of a large model they are large, and float32 rounds them by more than workers may differ."""
    net, weights = make_net().float(), (98_765.4321, 87_654.3219)
    exchange = exchange_of(net, alone(), 2**20)
    exchange.begin(1.0, measure_norm=False)
    net(torch.zeros(1, 6)).sum().backward()
    exchange.send_rest(lambda grad_sq: [mine(1)._replace(weights=weights)])
    view = exchange.receive(lambda waited_s: None)
    assert view.weights == tuple((one,) for one in exchange.trailer.as_summed(weights))
    assert abs(view.weights[0][0] - weights[0]) > 1e-3


def test_buckets_keep_reverse_order_size_and_type():
    parameters = [
        nn.Parameter(torch.zeros(n, dtype=d)) for n, d in [(4, torch.float32), (4, torch.float32), (2, torch.float64)]
    ]
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    buckets = layout_buckets(parameters, [], 16, comms[0], "p", behind=trailer.length(2, 3))
    assert [b.rounded for b in buckets] == [2, 4, 4, 0]
    assert [b.buffer.numel() for b in buckets] == [2, 4, 4, trailer.length(2, 3)]
    assert [b.buffer.dtype for b in buckets] == [torch.float64] + 3 * [torch.float32]


def test_workers_tell_each_other_numbers_behind_the_trailer() -> None:
    """Those of each worker are for all to read; gradients and trailer are as without them."""
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    nets = [make_net(), make_net()]
    exchanges = [
        TorchExchange(
            dict(net.named_parameters()),
            [],
            comm,
            300,
            "t",
            Workers(2, range(comm.rank, comm.rank + 1), (0, 1), told=3),
        )
        for net, comm in zip(nets, comms, strict=True)
    ]
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 3
    for rank, (net, exchange) in enumerate(zip(nets, exchanges, strict=True)):
        exchange.trailer.telling = np.zeros((3, 2))
        exchange.trailer.telling[:, rank] = (1, 20, 300) if rank else (0.5, 0, 0.25)
        exchange.begin(0.5, measure_norm=False)
        part = slice(4 * rank, 4 * rank + 4)
        nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        exchange.send_rest(lambda grad_sq: [mine(4)])
    single = make_net()
    nn.functional.cross_entropy(single(x), y).backward()
    for exchange in exchanges:
        assert exchange.receive(lambda waited_s: None).worker_samples == (4, 4)
        assert exchange.trailer.told.tolist() == [[0.5, 1], [0, 20], [0.25, 300]]
        exchange.deliver()
    for net in nets:
        for got, wanted in zip(net.parameters(), single.parameters(), strict=True):
            assert torch.allclose(got.grad, wanted.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype):
    net, comm = nn.Linear(2, 1).to(dtype), alone()
    exchange = exchange_of(net, comm, 4_000_000)
    assert exchange.buckets[0].buffer.dtype == torch.float32
    exchange.begin(1.0, measure_norm=False)
    net(torch.ones(1, 2, dtype=dtype)).sum().backward()
    exchange.send_rest(lambda grad_sq: [mine(1)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert net.weight.grad.dtype == dtype
    assert net.weight.grad.tolist() == [[1.0, 1.0]]


def test_the_sum_of_halves_is_the_gradient_of_all_workers():
    nets = [nn.Linear(2, 1, bias=False).to(torch.bfloat16) for _ in range(2)]
    comms: list[SumInMemory] = []
    comms += [SumInMemory(rank, comms) for rank in range(2)]
    exchanges = [exchange_of(net, comm, 4_000_000) for net, comm in zip(nets, comms, strict=True)]
    for value, net, exchange in zip((1.0, 3.0), nets, exchanges, strict=True):
        exchange.begin(0.5, measure_norm=False)
        net(torch.full((1, 2), value, dtype=torch.bfloat16)).sum().backward()
        exchange.send_rest(lambda grad_sq: [mine(1)])
    for exchange in exchanges:
        exchange.receive(lambda waited_s: None)
        exchange.deliver()
    assert [net.weight.grad.tolist() for net in nets] == [[[2.0, 2.0]]] * 2


def test_complex_parameters_are_refused():
    with pytest.raises(TrainingError, match=r"parameter w has type torch\.complex64"):
        check_types({"w": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})


def test_what_was_accumulated_before_counts_even_if_the_last_backward_does_not_touch_it():
    """Micro-batches: plain backward first, then the one that is exchanged, through another part of the model."""
    net = nn.ModuleDict({"first": nn.Linear(2, 1), "second": nn.Linear(2, 1)})
    exchange = exchange_of(net, alone(), 4_000_000)
    net["first"](torch.ones(3, 2)).mean().backward()
    exchange.begin(1.0, measure_norm=False)
    net["second"](torch.ones(3, 2)).mean().backward()
    exchange.send_rest(lambda grad_sq: [mine(3)])
    exchange.receive(lambda waited_s: None)
    exchange.deliver()
    assert net["first"].bias.grad.item() == pytest.approx(1.0)
    assert net["second"].bias.grad.item() == pytest.approx(1.0)
