"""Scripts whose batches cannot end early have the gradient of the whole batch, and are told why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everywhere
from torch.utils.checkpoint import checkpoint

from tests.unit.worker_hooks.late_worker import Worker, assert_equal, gradients

ROWS = 20

Step = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (ROWS,), generator=generator)


def assert_left_alone(model: nn.Module, step: Step, told: str) -> None:
    """The first batch in parts has the gradient of all rows, and this is told; the next one is whole."""
    torch.manual_seed(3)
    inputs, targets = batch()
    worker = Worker(model)
    worker.ends_after = 1
    worker.begin(inputs, targets)
    state = torch.get_rng_state()
    worker.backward(step(model, inputs, targets))
    assert not worker.parts.rows_left
    assert len(worker.told) == 1 and told in worker.told[0], worker.told
    found = gradients(model)
    worker.forwards[0].remove()
    torch.set_rng_state(state)
    step(model, *batch()).backward()
    assert_equal(found, gradients(model))


# -- losses --------------------------------------------------------------------------------------------------------


def contrastive(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outputs = F.normalize(model(inputs), dim=1)
    return F.cross_entropy(outputs @ outputs.T, torch.arange(ROWS))


def ranking(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores = model(inputs)[:, 0]
    return F.relu(1 - (scores[:, None] - scores[None])).mean()


def neighbours(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outputs = model(inputs)
    return (outputs[1:] - outputs[:-1]).abs().mean()


def halves(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    first, second = model(inputs).view(2, ROWS // 2, 3).unbind(0)
    return F.relu(0.5 - (first - second).abs().sum(1)).mean()


def pairs_by_view(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model(inputs).view(ROWS // 2, 6).sum(1).abs().mean()  # type: ignore[no-any-return]


def hardest(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none").topk(5).values.mean()


def root(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(inputs), torch.zeros(ROWS, 3).double()).sqrt()


def across(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model(inputs).log_softmax(0)[:, 0].mean()  # type: ignore[no-any-return]


def class_weights(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets, weight=torch.tensor([1.0, 2.0, 3.0]).double())


def ignored(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets.masked_fill(targets == 1, -100))


def masked(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    return (losses * (targets != 1)).sum() / int((targets != 1).sum())


def a_sum(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="sum")


def penalty(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())


def twice(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - model(inputs)).abs().mean() + F.cross_entropy(model(inputs), targets)


def own_function(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    class Mixing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.flip(0).cumsum(0).flip(0)

    return Mixing.apply(model(inputs)).mean()  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (contrastive, "its loss compares samples of the batch with each other"),
        (ranking, "its loss compares samples of the batch with each other"),
        (neighbours, "its loss may compare rows of the batch with each other (Slice)"),
        (halves, "its loss may compare rows of the batch with each other (View)"),
        (pairs_by_view, "its loss may compare rows of the batch with each other (View)"),
        (hardest, "its loss may compare rows of the batch with each other (Topk)"),
        (root, "its loss is no mean over samples"),
        (across, "its loss may compare rows of the batch with each other (LogSoftmax)"),
        (class_weights, "its loss is a mean over the weights of classes"),
        (ignored, "its loss is a mean without the targets that are -100"),
        (masked, "its loss is a sum divided by 12"),
        (a_sum, "its loss is a sum divided by nothing"),
        (penalty, "parameters by another way than through the outputs"),
        (twice, "the outputs of several calls of its models"),
        (own_function, "its loss may compare rows of the batch with each other (Mixing)"),
    ],
)
def test_losses_that_are_no_sum_over_rows(loss: Step, told: str) -> None:
    torch.manual_seed(0)
    assert_left_alone(make_model(), loss, told)


def test_two_models() -> None:
    torch.manual_seed(0)
    first, second = make_model(), nn.Linear(3, 3).double()
    inputs, targets = batch()
    worker = Worker(first, second)
    worker.ends_after = 1
    worker.begin(inputs, targets)
    worker.backward(F.cross_entropy(second(first(inputs)), targets))
    assert len(worker.told) == 1 and "the gradient of what it gives to Linear" in worker.told[0]
    assert not worker.parts.rows_left


# -- rows ----------------------------------------------------------------------------------------------------------


def shuffled(inputs: torch.Tensor) -> torch.Tensor:
    return inputs[torch.randperm(ROWS)]


def mixed_up(inputs: torch.Tensor) -> torch.Tensor:
    return 0.7 * inputs + 0.3 * inputs.flip(0)


def noisy(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + 0.1 * torch.randn_like(inputs)


def turned_over(inputs: torch.Tensor) -> torch.Tensor:
    return -inputs


@pytest.mark.parametrize("change", [shuffled, mixed_up, noisy, turned_over])
def test_rows_that_the_script_changes(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(change(inputs)), targets)

    assert_left_alone(make_model(), step, "that is not one of the batch, nor one of the batch times a factor")


def test_rows_that_the_script_changes_in_place() -> None:
    torch.manual_seed(0)

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs.copy_(inputs.flip(0))
        return F.cross_entropy(model(inputs), targets)

    assert_left_alone(make_model(), step, "changes its batches in place")


def test_other_rows_and_gradients_of_inputs() -> None:
    torch.manual_seed(0)

    def of_a_part(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs[:10]), targets[:10])

    def of_inputs(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs.requires_grad_()), targets)

    assert_left_alone(make_model(), of_a_part, "none of the tensors that the script gives to Sequential has the rows")
    assert_left_alone(make_model(), of_inputs, "asks for the gradient of what it gives to Sequential")


def test_a_collate_function_of_the_script() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = make_model(), batch()
    worker = Worker(model)
    worker.data.rows_are_samples = False
    worker.begin(inputs, targets)
    model(inputs)
    assert len(worker.told) == 1 and "a collate function of the script" in worker.told[0]


# -- models --------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers, self.kind, self.calls, self.last = make_model(), kind, 0, torch.zeros(1)
        self.drop = nn.Dropout(0.5 * (kind == "padded"))
        self.register_buffer("mean", torch.zeros(5).double())

    def forward(self, x: torch.Tensor) -> Any:
        if self.kind == "centred":
            x = x - x.mean(0)
        elif self.kind == "counts":
            self.calls += 1
        elif self.kind == "keeps":
            self.last = x + (self.last if len(self.last) == len(x) else 0)
        elif self.kind == "running":
            self.mean.lerp_(x.mean(0), 0.1)  # type: ignore[operator]
        elif self.kind == "random":
            x = x * torch.rand(len(x), 1)
        if self.kind == "checkpointed":
            hidden = checkpoint(self.layers[1], self.layers[0](x), use_reentrant=True)
            return self.layers[2](hidden)
        outputs = self.drop(self.layers(x))
        if self.kind == "adds":
            outputs = outputs + self.last
        if self.kind == "padded":  # by classes that no sample of the batch has
            outputs = F.pad(outputs, (0, int((x > 1).any(1).sum() < len(x))))
        return outputs @ outputs.T if self.kind == "square" else outputs


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("centred", "Odd computes something else for a part of the batch than for its rows in all of it"),
        ("counts", "Odd keeps a state of its own that each call changes, or draws random numbers"),
        ("keeps", "Odd keeps a state of its own"),
        ("running", "Odd keeps a state of its own"),
        ("random", "or draws random numbers"),
        ("square", "Odd computes something else for a part"),
    ],
)
def test_models_that_do_not_compute_each_row_by_itself(kind: str, told: str) -> None:
    torch.manual_seed(0)
    model = Odd(kind).double()

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        model.mean.zero_()
        return model(inputs).pow(2).mean()  # type: ignore[no-any-return]

    assert_left_alone(model, step, told)
    assert model.calls == 2 * (kind == "counts")


def test_batch_norm_in_training_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs), targets)

    assert_left_alone(model, step, "batch norm in training compares the rows of the batch")
    inputs, targets = batch()
    worker = Worker(model.eval())
    worker.ends_after = 1
    worker.begin(inputs, targets)
    worker.backward(step(model, inputs, targets))
    assert worker.parts.rows_left and not worker.told


def test_a_model_with_a_tensor_of_the_script_that_has_a_gradient() -> None:
    torch.manual_seed(0)

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        model.last = model.layers[2].bias.exp()
        return F.cross_entropy(model(inputs), targets)

    assert_left_alone(Odd("adds"), step, "Odd computes with tensors that have a gradient and are neither parameters")


def test_checkpointing_that_parts_cannot_have() -> None:
    torch.manual_seed(0)

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs), targets)

    assert_left_alone(Odd("checkpointed"), step, "Odd does not compute a part of the batch: When use_reentrant=True")


def test_outputs_that_parts_pad_in_other_ways() -> None:
    """The first batch has samples of one length, the second one has not."""
    torch.manual_seed(0)
    model, (inputs, targets) = Odd("padded"), batch()
    worker = Worker(model)
    for iteration, rows in enumerate((inputs.abs() + 1, inputs.abs().sort(0).values)):
        worker.begin(rows, targets, iteration=iteration)
        model.zero_grad()
        torch.manual_seed(3)
        loss = F.cross_entropy(model(rows), targets)
        assert len(worker.told) == iteration
        worker.backward(loss)
    assert "only the first dimension may follow the samples" in worker.told[0]
    found = gradients(model)
    worker.forwards[0].remove()
    torch.manual_seed(3)
    F.cross_entropy(model(rows), targets).backward()
    assert_equal(found, gradients(model))


def test_parameters_that_are_computed() -> None:
    torch.manual_seed(0)

    def step(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        fast = {name: p - 0.1 * p.pow(2) for name, p in model.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(model, fast, (inputs,)), targets)

    assert_left_alone(make_model(), step, "the parameters of its model are computed")
