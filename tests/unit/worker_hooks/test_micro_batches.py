"""A batch in micro-batches has the gradients of the batch at once, whatever the script does with it."""

from __future__ import annotations

import copy
import inspect
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import lines, open_run, settings_for
from worker_hooks.run import Run
from worker_hooks.session import Session

SAMPLES = 60
BATCH = 20

Body = Callable[[Run, torch.Tensor, torch.Tensor], None]


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs @ torch.randn(5, 2, generator=generator)))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def attach(
    model: nn.Module, folder: Path | None = None, optimizer: Any = None, lengths: Any = None, **settings: Any
) -> Run:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    session = Session(settings_for(folder, **({"sizes": (BATCH,)} | settings)), "torch")
    return open_run([model], [optimizer], make_data(), session, lengths=lengths)


def plain_body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.optimizers[0].zero_grad()
    run.backward(mse_loss(run.models[0](inputs), targets))
    run.optimizers[0].step()


def trained(make: Callable[[], nn.Module] = make_model, body: Body = plain_body, **settings: Any) -> nn.Module:
    """A model after four iterations."""
    torch.manual_seed(0)
    model = make().double()
    run = attach(model, **settings)
    for inputs, targets in run.batches(iterations=4):
        body(run, inputs.double(), targets.double())
    run.close()
    assert "forward" not in model.__dict__
    return model


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 1e-12) -> None:
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], rtol=tolerance, atol=tolerance, msg=name)


class Recorded(nn.Module):
    """A model that knows how many samples it has seen at once, and refuses more than `most`."""

    def __init__(
        self, most: int = 10**9, says: Callable[[], Exception] = MemoryError, in_backward: bool = False
    ) -> None:
        super().__init__()
        self.layers = make_model()
        self.sizes: list[int] = []
        self.most, self.says, self.in_backward = most, says, in_backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        outputs: torch.Tensor = self.layers(x)
        if len(x) <= self.most:
            return outputs
        if not self.in_backward:
            raise self.says()
        if outputs.requires_grad:
            outputs.register_hook(self._fail)
        return outputs

    def _fail(self, _: torch.Tensor) -> None:
        raise self.says()


# -- what scripts do -----------------------------------------------------------------------------------------------


def clips(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.optimizers[0].zero_grad()
    run.backward(mse_loss(run.models[0](inputs), targets))
    nn.utils.clip_grad_norm_(run.models[0].parameters(), 0.1)
    run.optimizers[0].step()


def accumulates(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.optimizers[0].zero_grad()
    mse_loss(run.models[0](inputs), targets).backward()
    run.backward((run.models[0](-inputs) - targets).abs().mean())
    run.optimizers[0].step()


def uses_outputs_twice(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.optimizers[0].zero_grad()
    first = run.models[0](inputs)
    second = run.models[0](x) if (x := torch.cat([first, inputs[:, :3]], 1)).shape[1] == 5 else first
    run.backward(mse_loss(first, targets) + second.pow(2).mean())
    run.optimizers[0].step()


def scales(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run.optimizers[0].zero_grad()
    run.backward(scaler.scale(mse_loss(run.models[0](inputs), targets)))
    scaler.step(run.optimizers[0])
    scaler.update()


def with_closure(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    def closure() -> float:
        run.optimizers[0].zero_grad()
        loss = mse_loss(run.models[0](inputs), targets)
        run.backward(loss)
        return float(loss.detach())

    run.optimizers[0].step(closure)


def attacks_inputs(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    model = run.models[0]
    inputs.requires_grad_()
    (slope,) = torch.autograd.grad(mse_loss(model(inputs), targets), inputs)
    run.optimizers[0].zero_grad()
    run.backward(mse_loss(model(inputs.detach() + 0.1 * slope.sign()), targets))
    run.optimizers[0].step()


def freezes(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.models[0][0].requires_grad_(run.iteration % 2 == 0)  # type: ignore[index, operator]
    plain_body(run, inputs, targets)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [plain_body, clips, accumulates, uses_outputs_twice, scales, with_closure, attacks_inputs]
)
@pytest.mark.parametrize("at_once", [1, 7, 19])
def test_micro_batches_are_the_batch(body: Body, at_once: int) -> None:
    assert_same(trained(body=body, at_once=(at_once,)), trained(body=body))


class Inputs(nn.Module):
    """Dicts, keywords, whole tensors and values that are no tensors, in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()
        self.unused = nn.Linear(2, 2)

    def forward(self, batch: dict[str, Any], *, scale: torch.Tensor, mode: str) -> dict[str, Any]:
        outputs = self.layers(batch["x"]) * scale
        return {"outputs": outputs, "parts": (outputs.argmax(1), None, mode)}


def test_arguments_and_outputs_of_any_form() -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.optimizers[0].zero_grad()
        found = run.models[0]({"x": inputs, "more": [1, "two"]}, scale=torch.tensor([2.0, 3.0]), mode="train")
        chosen, nothing, mode = found["parts"]
        assert (chosen.shape, chosen.dtype, nothing, mode) == ((BATCH,), torch.int64, None, "train")
        run.backward(mse_loss(found["outputs"], targets))
        assert run.models[0].unused.weight.grad is None
        run.optimizers[0].step()

    assert_same(trained(Inputs, body, at_once=(6,)), trained(Inputs, body))


@pytest.mark.slow
def test_freezing_and_no_more_than_allowed_at_once() -> None:
    assert_same(trained(body=freezes, at_once=(6,)), trained(body=freezes))
    model = trained(Recorded, at_once=(6,))
    assert isinstance(model, Recorded)
    assert max(model.sizes) <= 6 and sum(model.sizes) == 4 * (2 * BATCH - 5)  # each micro-batch but the last one twice


def test_dropout_repeats_its_masks_and_batch_norm_counts_a_micro_batch_once() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.drop(self.norm(self.first(x))))
            return out

    def by_hand(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.optimizers[0].zero_grad()
        outputs = torch.cat([run.models[0](inputs[begin : begin + 5]) for begin in range(0, BATCH, 5)])
        run.backward(mse_loss(outputs, targets))
        run.optimizers[0].step()

    model = trained(Noisy, at_once=(5,))
    assert_same(model, trained(Noisy, by_hand))
    assert int(model.state_dict()["norm.num_batches_tracked"]) == 4 * 4


def test_mixed_precision_is_that_of_the_forward_pass() -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.optimizers[0].zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run.models[0](inputs.float())
            assert outputs.dtype == torch.bfloat16
            run.models[0](inputs[:1].float())  # its casts have a graph, whatever came before
        run.backward(mse_loss(outputs.float(), targets.float()))
        run.optimizers[0].step()

    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def double(self) -> Single:  # type: ignore[override]
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(x)
            return out

    assert_same(trained(Single, body, at_once=(6,)), trained(Single, body), tolerance=0.02)


def test_copies_and_pickles_of_the_model_have_the_forward_of_its_class() -> None:
    torch.manual_seed(0)
    model = make_model()
    attach(model, at_once=(6,))
    average = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    inputs = torch.ones(3, 5)
    assert not model(inputs).any()
    assert average(inputs).any() and torch.equal(average(inputs), loaded(inputs))
    assert inspect.signature(model.forward) == inspect.signature(nn.Sequential.forward.__get__(model))


# -- what is refused -----------------------------------------------------------------------------------------------


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers, self.kind, self.calls = make_model(), kind, 0

    def forward(self, x: torch.Tensor) -> Any:
        outputs = self.layers(x)
        self.calls += 1
        if self.kind == "number":
            return outputs.mean()
        if self.kind == "square":
            return outputs @ outputs.T
        if self.kind == "text":
            return outputs, str(self.calls)
        if self.kind == "object":
            return outputs, object()
        if self.kind == "random":
            return outputs * random.random()
        return outputs


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("number", r"Odd returned an output of shape \(\) for 6 samples.*one row per sample"),
        ("square", r"shapes \(6, 6\), \(7, 7\), \(7, 7\).*only the first dimension may follow the samples"),
        ("text", r"different values for the micro-batches of one batch \('1', '2', '3'\)"),
        ("object", r"Odd returned object for 6 samples"),
        ("random", r"something else when its forward pass is repeated for the same samples"),
    ],
)
def test_outputs_that_cannot_be_put_together_are_refused(kind: str, told: str) -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        found = run.models[0](inputs)
        run.backward((found[0] if isinstance(found, tuple) else found).mean())

    with pytest.raises(TrainingError, match=told):
        trained(lambda: Odd(kind), body, at_once=(7,))


def test_batches_that_cannot_be_divided_are_refused() -> None:
    def other_rows(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.backward(run.models[0](torch.cat([inputs, inputs])).mean())

    def inner_model(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.backward(run.models[0].layers(inputs).mean())

    with pytest.raises(TrainingError, match="none of the tensors that the script gives to Recorded has 20 rows"):
        trained(Recorded, other_rows, at_once=(7,))
    with pytest.raises(TrainingError, match=r"has not called a model that it gave to attach\(\)"):
        trained(Recorded, inner_model, at_once=(7,))
    trained(Recorded, inner_model, at_once=(BATCH,))
    with pytest.raises(TrainingError, match="set at_once to 3 or more"):
        trained(lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)), at_once=(1,))


def test_weights_that_change_before_the_backward_pass_are_refused() -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        outputs = run.models[0](inputs)
        with torch.no_grad():
            run.models[0][0].bias.add_(1e-9)  # type: ignore[index, union-attr]
        run.backward(mse_loss(outputs, targets))

    with pytest.raises(TrainingError, match=r"weights of Sequential changed between its forward pass and run\.back"):
        trained(body=body, at_once=(7,))
    trained(body=body)


def test_a_compiled_model_is_divided_too() -> None:
    torch.manual_seed(0)
    model: Any = torch.compile(Recorded().double(), backend="eager", dynamic=True)
    own = model.forward
    run = attach(model, at_once=(7,))
    for inputs, targets in run.batches(iterations=4):
        plain_body(run, inputs.double(), targets.double())
    run.close()
    assert model.forward is own
    assert_same(model._orig_mod, trained(Recorded))


def test_parts_that_the_script_makes_itself_stay_as_they_are() -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        run.optimizers[0].zero_grad()
        (mse_loss(run.models[0](inputs[:10]), targets[:10]) / 2).backward()
        run.backward(mse_loss(run.models[0](inputs[10:]), targets[10:]) / 2)
        run.optimizers[0].step()

    model = trained(Recorded, body, at_once=(10,))
    assert isinstance(model, Recorded) and model.sizes == [10] * 8
    assert_same(model, trained(Recorded, body))


# -- memory: auto --------------------------------------------------------------------------------------------------

SAYS = [
    MemoryError,
    torch.OutOfMemoryError,
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.slow
@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("most", [3, 11])
@pytest.mark.parametrize("in_backward", [False, True])
def test_training_goes_on_where_memory_runs_out(says: Any, most: int, in_backward: bool) -> None:
    model = trained(lambda: Recorded(most, says, in_backward), memory="auto")
    assert isinstance(model, Recorded)
    assert_same(model, trained(Recorded))
    assert len([size for size in model.sizes if size > most]) <= 3


def test_without_a_failure_a_batch_is_computed_once_as_soon_as_the_optimizer_has_its_state() -> None:
    model = trained(Recorded, memory="auto")
    assert isinstance(model, Recorded) and model.sizes == [BATCH] * (2 * 2 + 2)


@pytest.mark.slow
def test_memory_that_gets_less_later_is_found_out_in_forward_and_in_the_repetition() -> None:
    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        model = run.models[0]
        assert isinstance(model, Recorded)
        model.most = (30, 12, 12, 5)[run.iteration]
        run.optimizers[0].zero_grad()
        outputs = model(inputs)
        if run.iteration == 2:
            model.most = 4
        run.backward(mse_loss(outputs, targets))
        run.optimizers[0].step()

    assert_same(trained(lambda: Recorded(30), body, memory="auto"), trained(Recorded))


@pytest.mark.slow
def test_a_repetition_in_smaller_parts_that_differs_is_refused() -> None:
    class WithDropout(Recorded):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(nn.functional.dropout(x)))  # two masks in turn

    def body(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        model = run.models[0]
        assert isinstance(model, WithDropout)
        run.optimizers[0].zero_grad()
        outputs = model(inputs)
        model.most = 2
        run.backward(mse_loss(outputs, targets))

    with pytest.raises(TrainingError, match="set at_once to less than"):
        trained(lambda: WithDropout(10), body, memory="auto")


@pytest.mark.slow
def test_the_ceiling_is_recorded_and_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = attach(Recorded(11), tmp_path, memory="auto", mode="observe")
    for inputs, targets in run.batches(iterations=8):
        plain_body(run, inputs, targets)
    run.close()
    recorded = lines(tmp_path)
    told = [line["detail"] for line in recorded if line["kind"] == "degraded" and line["what"] == "memory"]
    assert told == [
        "20, 15, 12 samples at once did not fit (MemoryError), 10 do; larger batches are computed in micro-batches"
    ]
    assert {line["at_once"] for line in recorded if line["kind"] == "window"} == {10}


def tokens_of(inputs: torch.Tensor) -> torch.Tensor:
    """2 or 4 tokens of each sample."""
    return 2 + 2 * (inputs[:, 0] > 0)


class TokensSeen(Recorded):
    """Knows how many tokens it has seen at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(int(tokens_of(x).sum()))
        outputs: torch.Tensor = self.layers(x)
        return outputs


def test_what_fits_at_once_counts_tokens_where_sizes_do(tmp_path: Path) -> None:
    lengths, at_once = tokens_of(make_data().tensors[0]).tolist(), 40

    def trained_with(folder: Path | None, **settings: Any) -> Recorded:
        torch.manual_seed(0)
        model = TokensSeen().double()
        run = attach(model, folder, lengths=lengths, unit="tokens", mode="observe", sizes=(3 * at_once,), **settings)
        for inputs, targets in run.batches(iterations=8):
            plain_body(run, inputs.double(), targets.double())
        run.close()
        return model

    parts, whole = trained_with(tmp_path, at_once=(at_once,)), trained_with(None)
    assert at_once // 2 < max(parts.sizes) <= at_once < max(whole.sizes)
    assert_same(parts, whole)
    assert {line["at_once"] for line in lines(tmp_path) if line["kind"] == "window"} == {at_once}


def test_a_batch_whose_tokens_fit_is_not_divided() -> None:
    """Of short samples more fit than of the longest."""
    lengths = [1] * (SAMPLES - 1) + [20]
    model = Recorded().double()
    run = attach(model, lengths=lengths, unit="tokens", sizes=(20,), at_once=(20,))
    for inputs, targets in run.batches(iterations=3):
        plain_body(run, inputs.double(), targets.double())
    assert len(model.sizes) == 3 and max(model.sizes) > 1


@pytest.mark.slow
def test_not_even_one_sample_is_an_error() -> None:
    with pytest.raises(TrainingError, match="a batch of 1 sample does not fit into memory"):
        trained(lambda: Recorded(0), memory="auto")


def test_other_errors_are_not_taken_for_memory() -> None:
    with pytest.raises(ValueError, match="of the script"):
        trained(lambda: Recorded(6, lambda: ValueError("of the script")), memory="auto")


def test_without_auto_the_error_names_what_fitted() -> None:
    torch.manual_seed(0)
    model = Recorded()
    run = attach(model)
    with pytest.raises(MemoryError) as caught:
        for inputs, targets in run.batches(iterations=4):
            model.most = BATCH if run.iteration < 2 else 7
            plain_body(run, inputs, targets)
    told = str(run.training.explained(caught.value))
    assert "worker 0 is out of memory in iteration 2 with a batch of 20 samples; 20 fitted before" in told
    assert "set at_once: 10 for this worker, or memory: auto" in told
    other = ValueError()
    assert run.training.explained(other) is other
