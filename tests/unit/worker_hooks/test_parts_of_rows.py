"""A backward pass that ends early has the gradient of the rows that it has processed, or the script is left alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everywhere
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tests.unit.worker_hooks.late_worker import Worker, assert_cut, assert_equal, gradients
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.backward import Backward
from worker_hooks.memory import batch_parts
from worker_hooks.memory.batch_parts import BatchParts
from worker_hooks.session import Session
from worker_hooks.torch.memory.batch_rows import BatchRows

ROWS = 35
WORDS, LENGTH = 11, 6

NUMBER = 8  # of parts, more than usual


@pytest.fixture(autouse=True)
def _in_eight_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_parts, "NUMBER", NUMBER)


class Mlp(nn.Module):
    """Counts the rows that it computes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        out: torch.Tensor = self.layers(x)
        return out


class Sum(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.one + self.other)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Parameter(torch.randn(LENGTH, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), -torch.inf), 1))
        self.head = nn.Linear(8, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.block(self.words(tokens) + self.places, src_mask=self.mask))
        return out


def cnn() -> nn.Module:
    convolution = nn.Conv2d(3, 4, 3, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.0), nn.Flatten(), nn.Linear(64, 3))


def numbers(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (rows,), generator=generator)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, 3, 4, 4, dtype=torch.float64), torch.randint(0, 3, (ROWS,))


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, WORDS, (ROWS, LENGTH)), torch.randint(0, WORDS, (ROWS, LENGTH))


def classes(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), targets)


def words(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).view(-1, WORDS), targets.reshape(-1))


def next_words(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens)[:, :-1].transpose(1, 2), tokens[:, 1:])


@pytest.mark.parametrize("ends_after", [1, 3, NUMBER - 1])
@pytest.mark.parametrize(
    ("make", "batch", "loss"),
    [
        (Mlp, numbers, classes),
        (Sum, numbers, classes),
        (cnn, images, classes),
        (Gpt, sentences, words),
        (Gpt, sentences, next_words),
    ],
)
def test_what_was_processed_is_exact(make: Callable[[], nn.Module], batch: Any, loss: Any, ends_after: int) -> None:
    torch.manual_seed(0)
    processed = assert_cut(Worker(make().double()), loss, batch(), ends_after)
    assert processed * NUMBER // ROWS in (ends_after, ends_after - 1, ends_after + 1)


def test_nothing_is_computed_twice_and_all_of_it_without_a_deadline() -> None:
    model, (inputs, targets) = Mlp().double(), numbers(64)
    worker = Worker(model)
    worker.begin(inputs, targets)
    worker.backward(classes(model, inputs, targets))  # the first call tries parts
    found = gradients(model)
    model.sizes.clear()
    worker.begin(inputs, targets, iteration=1)
    loss = classes(model, inputs, targets)
    assert model.sizes == [64 // NUMBER] * NUMBER
    worker.ends_after = 2
    worker.backward(loss)
    assert worker.parts.rows_left == 64 - 2 * 64 // NUMBER
    assert model.sizes == [64 // NUMBER] * NUMBER, "no forward pass is repeated"
    gradients(model)
    worker.parts.refuse("whole")
    classes(model, inputs, targets).backward()
    assert_equal(found, gradients(model))


def test_one_part_is_the_plain_call() -> None:
    model, (inputs, _) = Mlp().double(), numbers()
    worker = Worker(model)
    worker.parts._late = lambda: False
    worker.begin(inputs)
    assert model(inputs).grad_fn.name() == "AddmmBackward0"
    assert model.sizes == [ROWS]


def test_a_batch_has_no_more_parts_than_pairs_of_rows() -> None:
    model, batch = Mlp().double(), numbers(7)
    worker = Worker(model)
    worker.begin(*batch)
    model(batch[0])
    assert model.sizes[-3:] == [2, 2, 3]
    worker.begin(*(one[:3] for one in batch), iteration=1)
    model(batch[0][:3])
    assert model.sizes[-1] == 3 and not worker.told


def test_a_second_backward_pass_repeats_what_the_first_has_freed_and_runs_to_its_end() -> None:
    model, (inputs, targets) = Mlp().double(), numbers()
    worker = Worker(model)
    worker.begin(inputs, targets)
    loss = classes(model, inputs, targets)
    worker.ends_after = 1
    worker.of_rows.check(loss, 1.0)
    loss.backward(retain_graph=True)
    assert worker.parts.rows_left
    gradients(model)
    loss.backward()
    found = gradients(model)
    worker.parts.refuse("whole")
    classes(model, inputs, targets).backward()
    assert_equal(found, gradients(model))


def test_graphs_that_are_left_out_are_freed() -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    class Watched(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layers[0](x)
            if hidden.requires_grad:
                seen.append(weakref.ref(hidden))
            return self.layers[2](torch.exp(hidden) + hidden.pow(2))  # type: ignore[no-any-return]

    model, (inputs, targets) = Watched().double(), numbers()
    worker = Worker(model)
    worker.begin(inputs, targets)
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, targets)
    tried, kept = seen[:-NUMBER], seen[-NUMBER:]
    assert not any(one() is not None for one in tried) and all(one() is not None for one in kept)
    worker.ends_after = 2
    worker.of_rows.check(loss, 1.0)
    gc.disable()
    try:
        loss.backward(retain_graph=True)
        assert not any(one() is not None for one in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("at_once", [5, 6, 20])
def test_batches_that_memory_divides_end_early_too(at_once: int) -> None:
    torch.manual_seed(0)
    model = Mlp().double()
    processed = assert_cut(Worker(model, at_once=at_once), classes, numbers(), 2)
    assert processed < 2 * at_once and max(model.sizes[:-1]) == at_once


def test_memory_that_is_found_out_keeps_the_graphs_of_a_batch_that_fits() -> None:
    torch.manual_seed(0)
    model = Mlp().double()
    worker = Worker(model, searches=True)
    assert assert_cut(worker, classes, numbers(), 2) == ROWS, "whether the batch fits is not known"
    worker = Worker(model, searches=True)
    worker.begin(*numbers())
    worker.backward(classes(model, *numbers()))
    model.sizes.clear()
    assert assert_cut(worker, classes, numbers(), 2) < ROWS
    tries = [ROWS, 4, 5, 4, 4]  # whether the model computes each row by itself
    assert model.sizes[:-1] == [*tries, *(4, 4, 5, 4, 4, 5, 4, 5)]


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_memory_that_runs_out_in_a_part(fails_at: int, in_backward: bool) -> None:
    left = {"forward": 0, "backward": 0}  # calls before memory runs out

    def fail(place: str) -> None:
        left[place] -= 1
        if not left[place]:
            raise MemoryError

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.drop = nn.Linear(5, 3), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.drop(self.layers(x))
            fail("forward")
            if outputs.requires_grad:
                outputs.register_hook(lambda _: fail("backward"))
            return outputs

    torch.manual_seed(0)
    model, (inputs, targets) = Fails().double(), numbers()
    worker = Worker(model, searches=True)
    found = []
    for place in ("", "", "backward" if in_backward else "forward"):
        worker.begin(inputs, targets)
        torch.manual_seed(3)
        left["forward"] = fails_at * (place == "forward")
        outputs = model(inputs)
        left["backward"] = fails_at * (place == "backward")
        random = torch.get_rng_state()
        worker.backward(F.cross_entropy(outputs, targets))
        assert torch.equal(torch.get_rng_state(), random)
        found.append(gradients(model))
    assert_equal(*found[1:])
    assert left["backward" if in_backward else "forward"] <= 0 and not worker.told


def test_mixed_precision_and_a_scaled_loss() -> None:
    torch.manual_seed(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def scaled(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        assert outputs.dtype == torch.bfloat16
        scaled: torch.Tensor = scaler.scale(F.cross_entropy(outputs.float(), targets))
        return scaled

    model, (inputs, targets) = Mlp(), numbers()
    worker = Worker(model)
    worker.backward = lambda loss: (worker.of_rows.check(loss, 8.0), loss.backward())  # type: ignore[assignment]
    assert assert_cut(worker, scaled, (inputs.float(), targets), 3, tolerance=0.05) < ROWS


def test_a_compiled_model_and_one_with_a_frozen_part() -> None:
    torch.manual_seed(0)
    compiled: Any = torch.compile(Mlp().double(), backend="eager", dynamic=True)
    assert assert_cut(Worker(compiled), classes, numbers(), 3) < ROWS
    frozen = Mlp().double()
    frozen.layers[0].requires_grad_(False)
    assert assert_cut(Worker(frozen), classes, numbers(), 3) < ROWS


def test_a_model_that_is_compiled_later_is_computed_whole_in_one_graph() -> None:
    torch.manual_seed(0)
    graphs: list[Any] = []
    model, (inputs, targets) = Mlp().double(), numbers()
    model.sizes = None  # type: ignore[assignment]
    model.forward = model.layers.forward  # type: ignore[method-assign]
    worker = Worker(model)
    compiled: Any = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    worker.ends_after = 1
    for iteration in range(4):
        worker.parts._late = lambda iteration=iteration: iteration >= 2  # type: ignore[misc]
        worker.begin(inputs, targets, iteration=iteration)
        model.zero_grad()
        worker.backward(F.cross_entropy(compiled(inputs), targets))
        assert len(worker.told) == (iteration >= 2)
    assert "has compiled it afterwards" in worker.told[0]
    assert not worker.parts.rows_left and len(graphs) == 1
    found = gradients(model)
    worker.forwards[0].remove()
    classes(model, inputs, targets).backward()
    assert_equal(found, gradients(model))


def test_gradients_of_gradients_are_those_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = Mlp().double(), numbers()
    worker = Worker(model)

    def penalised() -> torch.Tensor:
        loss = classes(model, inputs, targets)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + sum(slope.pow(2).sum() for slope in slopes)

    worker.begin(inputs, targets)
    worker.ends_after = 1
    worker.backward(penalised())
    assert len(worker.told) == 1 and "parameters by another way" in worker.told[0]
    found = gradients(model)
    penalised().backward()
    assert_equal(found, gradients(model))


def test_dropout_and_scaled_inputs_are_no_reason_against_it() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 3)).double(), numbers()
    worker = Worker(model)
    pixels = (inputs * 50 + 128).clamp(0, 255).to(torch.uint8)
    worker.begin(pixels, targets)
    worker.ends_after = 1
    worker.backward(classes(model, (pixels.double() / 255 - 0.4) / 0.2, targets))
    assert worker.parts.rows_left and not worker.told


WORDS_OF_ROWS = torch.randperm(ROWS * LENGTH).view(ROWS, LENGTH)
PIXELS = torch.randint(0, 256, (ROWS, 4, 4, 3), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("batch", "given"),
    [
        (WORDS_OF_ROWS, WORDS_OF_ROWS[:, :-1]),
        (WORDS_OF_ROWS, WORDS_OF_ROWS[:, 1:].clone()),
        (WORDS_OF_ROWS, WORDS_OF_ROWS[:, :-1].int()),
        (WORDS_OF_ROWS, WORDS_OF_ROWS.float()),
        (WORDS_OF_ROWS, WORDS_OF_ROWS[:, 0]),
        (PIXELS, PIXELS.view(ROWS, -1)),
        (PIXELS, PIXELS.permute(0, 3, 1, 2)),
        (PIXELS, PIXELS[..., :1].squeeze(-1)),
        (PIXELS, PIXELS.float().div(255).sub(torch.rand(3)).div(torch.rand(3))),
        (PIXELS, PIXELS.float().div(255).to(torch.bfloat16).flatten(1)),
    ],
)
def test_rows_that_are_those_of_the_batch(batch: torch.Tensor, given: torch.Tensor) -> None:
    rows = BatchRows((torch.rand(ROWS), {"batch": batch}), ROWS)
    assert not rows.strange([given])
    order = torch.arange(ROWS).roll(1)
    for other in (given[order], given.flip(0), given.roll(1, 0)):
        assert "that is not one of the batch" in rows.strange([given, other])
    expanded = given[:1].expand_as(given)
    assert rows.strange([expanded]) and rows.strange([given.as_strided(given.shape, (1, *given.stride()[1:]))])


def test_rows_beside_those_of_the_batch() -> None:
    more = torch.rand(ROWS + 1, LENGTH)
    rows = BatchRows(more[1:], ROWS)
    assert not rows.strange([more[1:, :2]])
    for other in (more[:-1], more.view(-1)[LENGTH - 1 : -1].view(ROWS, LENGTH)):
        assert rows.strange([other])


def test_a_loss_without_the_check_runs_to_its_end() -> None:
    model, (inputs, targets) = Mlp().double(), numbers()
    worker = Worker(model)
    worker.ends_after = 1
    worker.begin(inputs, targets)
    classes(model, inputs, targets).backward()
    assert not worker.parts.rows_left


# -- in a training -------------------------------------------------------------------------------------------------


def trained(monkeypatch: pytest.MonkeyPatch, is_late: bool, data: Any) -> tuple[Mlp, list[str]]:
    """A model after three iterations, none of which ends early, and what was told."""
    told: list[str] = []
    parts = BatchParts(lambda: is_late, lambda: False, told.append)
    parts.begin()
    monkeypatch.setattr(Backward, "early_end", MagicMock(parts=parts))
    torch.manual_seed(0)
    model = Mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = open_run([model], [optimizer], data, Session(settings_for(sizes=(16,)), "torch"))
    for inputs, targets in run.batches(iterations=3):
        optimizer.zero_grad()
        run.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
    run.close()
    assert "forward" not in vars(model)
    return model, told


def test_a_training_in_parts_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(*numbers(64))
    for source in (data, DataLoader(data, batch_size=16)):
        plain, _ = trained(monkeypatch, False, source)
        assert plain.sizes == [16] * 3
        divided, told = trained(monkeypatch, True, source)
        assert divided.sizes[-NUMBER:] == [2] * NUMBER and not told
        assert_equal(*([p.detach() for p in model.parameters()] for model in (plain, divided)))


def test_batches_that_the_script_collates_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(TensorDataset(*numbers(64)), batch_size=16, collate_fn=partial(default_collate))
    model, told = trained(monkeypatch, True, loader)
    assert model.sizes == [16] * 3
    assert len(told) == 1 and "a collate function of the script" in told[0]
