"""In MXNet a batch in micro-batches has the gradients of the batch at once, whatever the script does with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dynamix_ps.numpy_names  # noqa: F401

mx = pytest.importorskip("mxnet", reason="MXNet was left out of this environment")

from mxnet import autograd, gluon  # noqa: E402

from dynamix_ps.errors import TrainingError  # noqa: E402
from tests.unit.worker_hooks.local_run import lines, settings_for  # noqa: E402
from tests.unit.worker_hooks.mxnet_run import open_run  # noqa: E402
from worker_hooks.run import Run  # noqa: E402
from worker_hooks.session import Session  # noqa: E402

SAMPLES = 60
BATCH = 20

Body = Callable[[Run, Any, Any], None]


def make_data() -> gluon.data.ArrayDataset:
    generator = np.random.default_rng(3)
    inputs = generator.standard_normal((SAMPLES, 5))
    targets = np.tanh(inputs @ generator.standard_normal((5, 2)))
    return gluon.data.ArrayDataset(mx.nd.array(inputs, dtype="float64"), mx.nd.array(targets, dtype="float64"))


def make_net() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Dense(7, activation="tanh", in_units=5, dtype="float64"),
        gluon.nn.Dense(2, in_units=7, dtype="float64"),
    )
    return net


def make_hybrid() -> gluon.nn.HybridSequential:
    net = make_net()
    net.hybridize()
    return net


def attach(net: gluon.Block, folder: Path | None = None, **settings: Any) -> Run:
    mx.random.seed(0)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0625, "momentum": 0.875})
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    return open_run(
        net, trainer, make_data(), Session(settings_for(folder, **{"sizes": (BATCH,), **settings}), "mxnet")
    )


def plain_body(run: Run, inputs: Any, targets: Any) -> None:
    with autograd.record():
        loss = ((run.adapter.net(inputs) - targets) ** 2).mean()
    run.backward(loss)
    run.adapter.trainer.step(1)


def trained(make: Callable[[], gluon.Block] = make_net, body: Body = plain_body, **settings: Any) -> gluon.Block:
    """A net after four iterations."""
    net = make()
    run = attach(net, **settings)
    for inputs, targets in run.batches(iterations=4):
        body(run, inputs, targets)
    run.close()
    assert "forward" not in vars(net)
    return net


def assert_same(one: gluon.Block, other: gluon.Block, tolerance: float = 1e-12, but: str = "nothing") -> None:
    for name, parameter in one._collect_params_with_prefix().items():
        values, expected = parameter.data().asnumpy(), other._collect_params_with_prefix()[name].data().asnumpy()
        if but not in name:
            np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance, err_msg=name)


class Recorded(gluon.Block):
    """A net that knows how many samples it has seen at once, and refuses more than `most`."""

    def __init__(self, most: int = 10**9, says: Callable[[], Exception] = MemoryError) -> None:
        super().__init__()
        self.layers = make_net()
        self.sizes: list[int] = []
        self.most, self.says = most, says

    def forward(self, x: Any) -> Any:
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise self.says()
        return self.layers(x)


# -- what scripts do -----------------------------------------------------------------------------------------------


def clips(run: Run, inputs: Any, targets: Any) -> None:
    with autograd.record():
        loss = ((run.adapter.net(inputs) - targets) ** 2).mean()
    run.backward(loss)
    gradients = [one.grad() for one in run.adapter.net.collect_params().values()]
    norm = float(sum((one**2).sum().asscalar() for one in gradients)) ** 0.5
    for one in gradients:
        one[:] = one * min(1.0, 0.1 / norm)
    run.adapter.trainer.step(1)


def calls_twice(run: Run, inputs: Any, targets: Any) -> None:
    with autograd.record():
        loss = ((run.adapter.net(inputs) - targets) ** 2).mean() + (run.adapter.net(-inputs) + targets).abs().mean()
    run.backward(loss)
    run.adapter.trainer.step(1)


def uses_weights_in_the_loss(run: Run, inputs: Any, targets: Any) -> None:
    """Those of a layer, which the net uses too."""
    with autograd.record():
        decay = (run.adapter.net[1].weight.data() ** 2).sum() + (run.adapter.net[0].bias.data() ** 4).sum()
        loss = ((run.adapter.net(inputs) - targets) ** 2).mean() + 0.1 * decay
    run.backward(loss)
    run.adapter.trainer.step(1)


def weighs(run: Run, inputs: Any, targets: Any) -> None:
    units = (inputs[:, 0] > 0).astype("float64")
    with autograd.record():
        loss = (((run.adapter.net(inputs) - targets) ** 2).mean(1) * units).sum() / units.sum()
    run.backward(loss, weight=units.sum())
    run.adapter.trainer.step(1)


def uses_inputs_elsewhere(run: Run, inputs: Any, targets: Any) -> None:
    with autograd.record():
        outside = mx.nd.dot(inputs, run.adapter.net[0].weight.data().T)  # from now on MXNet knows the inputs
        loss = (
            ((run.adapter.net(inputs * 1) - targets) ** 2).mean()
            + (run.adapter.net(inputs) ** 2).mean()
            + (outside**2).mean()
        )
    run.backward(loss)
    run.adapter.trainer.step(1)


def evaluates_between(run: Run, inputs: Any, targets: Any) -> None:
    with autograd.record():
        outputs = run.adapter.net(inputs)
        loss = ((outputs - targets) ** 2).mean()
    assert np.allclose(run.adapter.net(inputs).asnumpy(), outputs.asnumpy())
    run.backward(loss, correct=(outputs.argmax(1) == targets.argmax(1)).sum())
    run.adapter.trainer.step(1)


@pytest.mark.parametrize(
    "body",
    [plain_body, clips, calls_twice, uses_weights_in_the_loss, uses_inputs_elsewhere, weighs, evaluates_between],
)
@pytest.mark.parametrize("at_once", [1, 7, 19])
def test_micro_batches_are_the_batch(body: Body, at_once: int) -> None:
    assert_same(trained(body=body, at_once=(at_once,)), trained(body=body))


def test_hybrid_nets_are_divided_too() -> None:
    assert_same(trained(make_hybrid, at_once=(6,)), trained())


def test_no_more_than_allowed_at_once() -> None:
    net = trained(Recorded, at_once=(6,))
    assert isinstance(net, Recorded)
    assert max(net.sizes) <= 6 and sum(net.sizes) == 4 * 2 * BATCH  # each micro-batch twice
    assert_same(net, trained(Recorded))


class Parts(NamedTuple):
    first: Any
    rest: list[Any]


class Inputs(gluon.Block):
    """Dicts, whole arrays and values that are no arrays, in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_net()

    def forward(self, batch: dict[str, Any], scale: Any, mode: str) -> Parts:
        outputs = self.layers(batch["x"]) * scale
        return Parts(outputs, [outputs.argmax(1).astype("int32"), None, (batch["x"] + 0, mode)])


def test_arguments_and_outputs_of_any_form() -> None:
    def body(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            found = run.adapter.net(
                {"x": inputs, "more": [1, "two"]}, mx.nd.array([2.0, 3.0], dtype="float64"), "train"
            )
            chosen, nothing, (same, mode) = found.rest
            loss = ((found.first - targets) ** 2).mean() + same.mean()
        assert (chosen.shape, chosen.dtype, nothing, mode) == ((BATCH,), np.int32, None, "train")
        run.backward(loss)
        run.adapter.trainer.step(1)

    assert_same(trained(Inputs, body, at_once=(6,)), trained(Inputs, body))


class Noisy(gluon.nn.HybridSequential):
    def __init__(self) -> None:
        super().__init__()
        self.add(
            gluon.nn.Dense(8, in_units=5, dtype="float64"),
            gluon.nn.BatchNorm(in_channels=8),
            gluon.nn.Dropout(0.5),
            gluon.nn.Dense(2, in_units=8, dtype="float64"),
        )
        self.cast("float64")


@pytest.mark.parametrize("hybrid", [False, True])
def test_dropout_repeats_its_masks_and_batch_norm_is_that_of_a_micro_batch(hybrid: bool) -> None:
    """As a script that divides the batch itself, with the same random numbers."""
    seeds: list[int] = []

    def make() -> gluon.Block:
        net = Noisy()
        if hybrid:
            net.hybridize()
        return net

    def divided(run: Run, inputs: Any, targets: Any) -> None:
        original = run.training.memory.next_seed
        run.training.memory.next_seed = lambda: seeds.append(original()) or seeds[-1]  # type: ignore[func-returns-value]
        plain_body(run, inputs, targets)
        run.training.memory.next_seed = original

    def by_hand(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            outputs = []
            for begin in range(0, BATCH, 5):
                mx.random.seed(seeds.pop(0))
                outputs.append(run.adapter.net(inputs[begin : begin + 5]))
            loss = ((mx.nd.concat(*outputs, dim=0) - targets) ** 2).mean()
        run.backward(loss)
        run.adapter.trainer.step(1)

    net = trained(make, divided, at_once=(5,))
    assert len(set(seeds)) == 16
    assert_same(net, trained(make, by_hand), tolerance=1e-9, but="running")


class Counting(gluon.Block):
    """Every update of its running mean goes a tenth of the way to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = gluon.nn.BatchNorm(in_channels=5), gluon.nn.Dense(2, in_units=5)
        self.cast("float64")

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(x * 0 + 1) + x)


@pytest.mark.parametrize(("settings", "updates"), [({}, 4), ({"at_once": (5,)}, 4 * 4)])
def test_batch_norm_counts_every_micro_batch_once(settings: dict[str, Any], updates: int) -> None:
    net = trained(Counting, **settings)
    assert net.norm.running_mean.data().asnumpy() == pytest.approx(1 - 0.9**updates)


# -- what is refused -----------------------------------------------------------------------------------------------


class Odd(gluon.Block):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers, self.kind, self.calls = make_net(), kind, 0

    def forward(self, x: Any) -> Any:
        outputs = self.layers(x)
        self.calls += 1
        if self.kind == "number":
            return outputs.mean()
        if self.kind == "square":
            return mx.nd.dot(outputs, outputs.T)
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
        ("number", r"Odd returned an output of shape \(1,\) for 6 samples.*one row per sample"),
        ("square", r"shapes \(6, 6\), \(7, 7\), \(7, 7\).*only the first dimension may follow the samples"),
        ("text", r"different values for the micro-batches of one batch \('1', '2', '3'\)"),
        ("object", r"Odd returned object for 6 samples"),
        ("random", r"something else when its forward pass is repeated for the same samples"),
    ],
)
def test_outputs_that_cannot_be_put_together_are_refused(kind: str, told: str) -> None:
    def body(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            found = run.adapter.net(inputs)
            loss = (found[0] if isinstance(found, tuple) else found).mean()
        run.backward(loss)

    with pytest.raises(TrainingError, match=told):
        trained(lambda: Odd(kind), body, at_once=(7,))


def test_batches_that_cannot_be_divided_are_refused() -> None:
    def other_rows(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            loss = run.adapter.net(mx.nd.concat(inputs, inputs, dim=0)).mean()
        run.backward(loss)

    def inner_net(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            loss = run.adapter.net.layers(inputs).mean()
        run.backward(loss)
        run.adapter.trainer.step(1)

    with pytest.raises(TrainingError, match="none of the arrays that the script gives to Recorded has 20 rows"):
        trained(Recorded, other_rows, at_once=(7,))
    with pytest.raises(TrainingError, match=r"has not called a model that it gave to attach\(\)"):
        trained(Recorded, inner_net, at_once=(7,))
    trained(Recorded, inner_net, at_once=(BATCH,))
    with pytest.raises(TrainingError, match="set at_once to 3 or more"):
        trained(Noisy, at_once=(1,))


def test_inputs_with_a_gradient_are_refused() -> None:
    def attacks(run: Run, inputs: Any, targets: Any) -> None:
        inputs.attach_grad()
        plain_body(run, inputs, targets)

    def chains(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            again = run.adapter.net(mx.nd.concat(run.adapter.net(inputs), inputs[:, :3], dim=1))
            loss = ((again - targets) ** 2).mean()
        run.backward(loss)
        run.adapter.trainer.step(1)

    for body in (attacks, chains):
        with pytest.raises(TrainingError, match="has a gradient of its own, which micro-batches do not give in MXNet"):
            trained(body=body, at_once=(7,))
        trained(body=body)


def test_a_step_before_the_backward_pass_is_refused() -> None:
    def body(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            outputs = run.adapter.net(inputs)
            first, second = outputs.mean(), (outputs**2).mean()
        run.backward(first)
        run.adapter.trainer.step(1)
        run.backward(second)

    with pytest.raises(TrainingError, match=r"weights of HybridSequential changed between its forward pass and run\."):
        trained(body=body, at_once=(7,))


def test_parts_that_the_script_makes_itself_stay_as_they_are() -> None:
    def body(run: Run, inputs: Any, targets: Any) -> None:
        with autograd.record():
            outputs = [run.adapter.net(inputs[begin : begin + 10]) for begin in (0, 10)]
            loss = ((mx.nd.concat(*outputs, dim=0) - targets) ** 2).mean()
        run.backward(loss)
        run.adapter.trainer.step(1)

    net = trained(Recorded, body, at_once=(10,))
    assert isinstance(net, Recorded) and net.sizes == [10] * 8
    assert_same(net, trained(Recorded, body))


def test_the_ceiling_is_recorded(tmp_path: Path) -> None:
    run = attach(Recorded(), tmp_path, at_once=(10,), mode="observe")
    for inputs, targets in run.batches(iterations=8):
        plain_body(run, inputs, targets)
    run.close()
    assert {line["at_once"] for line in lines(tmp_path) if line["kind"] == "window"} == {10}


def test_memory_auto_is_refused() -> None:
    with pytest.raises(TrainingError, match="mxnet may hang or crash where an allocation fails, so say at_once: for"):
        trained(memory="auto")


def test_out_of_memory_is_an_error_that_names_what_fitted() -> None:
    run = attach(Recorded(says=lambda: mx.MXNetError("MXNetError: Failed to allocate CPU Memory")))
    with pytest.raises(mx.MXNetError) as caught:
        for inputs, targets in run.batches(iterations=4):
            run.adapter.net.most = BATCH if run.iteration < 2 else 7
            plain_body(run, inputs, targets)
    told = str(run.training.explained(caught.value))
    assert "worker 0 is out of memory in iteration 2 with a batch of 20 samples; 20 fitted before" in told
    assert "set at_once: 10 for this worker in the cluster file" in told
