"""One process that computes for all workers comes to the weights, norms and records of as many processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dynamix_ps.torch as dynamix
from dynamix_ps.metrics.noise import estimate
from tests.unit.rehearsal.conftest import Rehearse, lines_of

SAMPLES, LR, MOMENTUM = 211, 0.05, 0.9
Loss = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def normalised_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3)).double()


class WithLoss(nn.Module):
    """Returns its outputs and a loss over the samples that count, whose number differs from worker to worker."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain_model()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs, counts = self.inner(inputs), targets != 2
        return {"outputs": outputs, "loss": cross_entropy(outputs[counts], targets[counts])}


def returned_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    found = model(inputs, targets)
    assert len(found["outputs"]) == len(targets)
    return found["loss"] + 0.01 * found["outputs"].square().mean()


def penalty(model: nn.Module) -> torch.Tensor:
    return 0.01 * sum(p.square().sum() for p in model.parameters())


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(inputs), targets)


def penalised_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return loss_of(model, inputs, targets) + penalty(model)


def as_processes(
    model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], plans: list[Any], loss_of: Loss = loss_of
) -> list[Any]:
    """What that many processes come to: weights, running statistics, and the noise of every iteration."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    noise = []
    for (inputs, targets), sizes in zip(batches, plans, strict=True):
        total, begin = sum(sizes), 0
        sums, squares, states = [torch.zeros_like(p) for p in model.parameters()], [], []
        for size in sizes:
            if not size:
                squares.append(math.nan)
                continue
            worker = copy.deepcopy(model)
            part = slice(begin, begin + size)
            gradient = torch.autograd.grad(loss_of(worker, inputs[part], targets[part]), list(worker.parameters()))
            squares.append(sum(float(g.square().sum()) for g in gradient))
            sums = [one + g * size / total for one, g in zip(sums, gradient, strict=True)]
            states.append((size / total, worker.state_dict()))
            begin += size
        squared = sum(float(g.square().sum()) for g in sums)
        noise.append(estimate(sizes, squares, squared))
        for parameter, one in zip(model.parameters(), sums, strict=True):
            parameter.grad = one
        optimizer.step()
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(sum(share * state[name] for share, state in states))
            else:
                buffer.copy_(states[0][1][name])
    return noise


@pytest.mark.parametrize(
    ("make", "loss_of"),
    [
        (plain_model, loss_of),
        (plain_model, penalised_loss),
        (normalised_model, loss_of),
        (normalised_model, penalised_loss),
        (WithLoss, returned_loss),
    ],
)
def test_weights_statistics_and_noise_are_those_of_several_processes(make: Any, loss_of: Loss, rehearse: Rehearse):
    folder = rehearse(policy={"name": "random"}, batch={"min": 4, "max": 20})
    torch.manual_seed(0)
    model = make()
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    run = dynamix.attach(model, optimizer, make_data())
    assert (run.rank, run.size, run.batch_size) == (0, 3, 24)
    batches, plans = [], []
    for inputs, targets in run.batches(epochs=3):
        batches.append((inputs, targets))
        plans.append(run.training.now.batch.step.sizes)
        optimizer.zero_grad()
        run.backward(loss_of(model, inputs, targets))
        optimizer.step()
    run.close()
    assert len(set(plans)) > 3, "the plan changes"
    noise = as_processes(alone, batches, plans, loss_of)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-9, atol=1e-9, msg=name)
    measured = [line for line in lines_of(folder, 1, "window") if line["noise_variance"] is not None]
    assert measured
    for line in measured:
        mine = [noise[i] for i in range(line["first_iteration"], line["first_iteration"] + line["iterations"])]
        own = [one for i, one in enumerate(mine, line["first_iteration"]) if i % 4 == 1]  # every 4th is measured
        assert line["noise_variance"] == pytest.approx(own[0].variance, rel=1e-4)
        assert line["noise_signal"] == pytest.approx(own[0].signal, rel=1e-4, abs=1e-9)


def test_models_that_call_one_another_are_divided_each(rehearse: Rehearse):
    folder = rehearse(policy={"name": "static"})
    torch.manual_seed(0)
    first, second = nn.Sequential(nn.Linear(6, 9), nn.Tanh()).double(), nn.Linear(9, 3).double()
    alone = copy.deepcopy(nn.Sequential(first, second))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=LR, momentum=MOMENTUM)
    run = dynamix.attach([first, second], optimizer, make_data())
    batches, plans = [], []
    for inputs, targets in run.batches(iterations=8):
        batches.append((inputs, targets))
        plans.append(run.training.now.batch.step.sizes)
        optimizer.zero_grad()
        run.backward(cross_entropy(second(first(inputs)), targets))
        optimizer.step()
    run.close()
    noise = as_processes(alone, batches, plans)
    torch.testing.assert_close(second.weight, alone[1].weight, rtol=1e-9, atol=1e-9)
    (line,) = (line for line in lines_of(folder, 0, "window") if line["first_iteration"] == 1)
    assert line["noise_variance"] == pytest.approx(noise[1].variance, rel=1e-4)


def test_losses_that_are_means_over_units_train_as_one_process_does(rehearse: Rehearse):
    folder = rehearse(policy={"name": "static"})
    torch.manual_seed(0)
    model = plain_model()
    alone = copy.deepcopy(model)

    def loss_of(one: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Samples of class 0 do not count."""
        counts = targets > 0
        return cross_entropy(one(inputs)[counts], targets[counts]), int(counts.sum())

    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    run = dynamix.attach(model, optimizer, make_data())
    batches = []
    for inputs, targets in run.batches(iterations=8):
        batches.append((inputs, targets))
        optimizer.zero_grad()
        loss, units = loss_of(model, inputs, targets)
        run.backward(loss, weight=units)
        optimizer.step()
    run.close()
    optimizer = torch.optim.SGD(alone.parameters(), lr=LR, momentum=MOMENTUM)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss_of(alone, inputs, targets)[0].backward()
        optimizer.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    (line,) = (line for line in lines_of(folder, 2, "window") if line["first_iteration"] == 1)
    assert line["global_units"] == sum(int((targets > 0).sum()) for _, targets in batches[1:4])
    assert line["units"] == pytest.approx(line["global_units"] / 3)
    assert line["noise_variance"] is not None


def test_a_loader_of_the_script_gives_the_batches_of_all_workers(rehearse: Rehearse):
    rehearse(policy={"name": "static"}, prefetch=2)
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = torch.utils.data.DataLoader(make_data(), batch_size=8, shuffle=True)
    run = dynamix.attach(model, optimizer, loader)
    taken = []
    for inputs, targets in run.batches(epochs=1):
        taken.append(len(inputs))
        optimizer.zero_grad()
        run.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
    assert sum(taken) == SAMPLES
    assert taken[0] == 24


def test_every_sample_comes_once_and_sizes_are_the_plan_s(rehearse: Rehearse):
    folder = rehearse(policy={"name": "random"}, batch={"min": 4, "max": 20})
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    data = make_data()
    run = dynamix.attach(model, optimizer, torch.utils.data.TensorDataset(*data.tensors, torch.arange(SAMPLES)))
    taken: list[int] = []
    for inputs, targets, numbers in run.batches(epochs=1):
        taken += numbers.tolist()
        optimizer.zero_grad()
        run.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
    run.close()
    assert sorted(taken) == list(range(SAMPLES))
    finished = [lines_of(folder, rank, "finished")[0] for rank in range(3)]
    assert sum(line["samples"] for line in finished) == SAMPLES
    windows = [lines_of(folder, rank, "window") for rank in range(3)]
    plans = {line["version"]: line["batch_sizes"] for line in lines_of(folder, 0, "plan_applied")} | {0: [8, 8, 8]}
    for of_workers in zip(*windows, strict=True):
        assert [line["batch_size"] for line in of_workers] == plans[of_workers[0]["plan_version"]]


def test_averages_of_weights_are_over_the_samples_of_all_workers(rehearse: Rehearse):
    rehearse(policy={"name": "random"}, batch={"min": 4, "max": 20})
    model, decay, first = plain_model(), 0.8, 24
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    run = dynamix.attach(model, optimizer, make_data(), ema_decay=decay)
    mean, trained = [torch.zeros_like(p) for p in model.parameters()], 0
    for inputs, targets in run.batches(iterations=14):
        optimizer.zero_grad()
        run.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        trained += len(inputs)
        part = (1 - decay ** (len(inputs) / first)) / (1 - decay ** (trained / first))
        mean = [one + part * (p.detach() - one) for one, p in zip(mean, model.parameters(), strict=True)]
    with run.averaged():
        for one, parameter in zip(mean, model.parameters(), strict=True):
            torch.testing.assert_close(parameter.detach(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["compiled, then attached", "attached, then compiled"])
def test_compiled_models_train_as_others_do(first: str, rehearse: Rehearse):
    folder = rehearse(policy={"name": "random"}, batch={"min": 4, "max": 20})
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = plain_model()
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    compiled: Any = torch.compile(model, backend="aot_eager")
    run = dynamix.attach(compiled if first.startswith("compiled") else model, optimizer, make_data())
    batches, plans = [], []
    for inputs, targets in run.batches(iterations=14):
        batches.append((inputs, targets))
        plans.append(run.training.now.batch.step.sizes)
        optimizer.zero_grad()
        run.backward(cross_entropy(compiled(inputs), targets))
        optimizer.step()
    run.close()
    noise = as_processes(alone, batches, plans)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    first_window = next(line for line in lines_of(folder, 0, "window") if line["first_iteration"] == 1)
    assert first_window["noise_variance"] == pytest.approx(noise[1].variance, rel=1e-4)
