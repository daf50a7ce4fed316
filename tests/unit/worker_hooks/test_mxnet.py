"""The MXNet hook in one process (comm: local), as a script sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynamix_ps.numpy_names  # noqa: F401

mx = pytest.importorskip("mxnet", reason="MXNet was left out of this environment")

from mxnet import autograd, gluon  # noqa: E402

from dynamix_ps.errors import CheckpointError, EnvironmentNotReady, TrainingError  # noqa: E402
from tests.unit.worker_hooks.local_run import SAMPLES, lines, settings_for  # noqa: E402
from tests.unit.worker_hooks.mxnet_run import open_run  # noqa: E402
from worker_hooks.iteration.in_flight import IterationInFlight  # noqa: E402
from worker_hooks.mxnet.batches import fetch  # noqa: E402
from worker_hooks.run import Run  # noqa: E402
from worker_hooks.sampling.sampler import Cursor, Step  # noqa: E402
from worker_hooks.session import Session  # noqa: E402

cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def make_data() -> gluon.data.ArrayDataset:
    inputs = np.random.default_rng(1).standard_normal((SAMPLES, 4), dtype=np.float32)
    return gluon.data.ArrayDataset(mx.nd.array(inputs), (inputs.sum(1) > 0).astype(np.int32))


def make_net(hybrid: bool = False) -> gluon.nn.HybridSequential:
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    # shapes are known after the first batch only; normalising takes a bias away, so its gradient would be mere rounding
    net.add(gluon.nn.Dense(6, use_bias=False), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    return net


def make_trainer(net: gluon.Block, optimizer: str = "sgd", **options: Any) -> gluon.Trainer:
    default = {"learning_rate": 0.1, "momentum": 0.9} if optimizer == "sgd" else {"learning_rate": 0.01}
    return gluon.Trainer(net.collect_params(), optimizer, default | options)


def make_run(folder: Path | None = None, hybrid: bool = False, optimizer: str = "sgd", **changes: Any) -> Run:
    net = make_net(hybrid)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    return open_run(net, make_trainer(net, optimizer), make_data(), Session(settings_for(folder, **changes), "mxnet"))


def train(run: Run, **limits: int) -> list[mx.nd.NDArray]:
    """The usual loop; returns the inputs of every batch."""
    seen = []
    for inputs, targets in run.batches(**limits):
        seen.append(inputs)
        with autograd.record():
            logits = run.adapter.net(inputs)
            loss = cross_entropy(logits, targets).mean()
        run.backward(loss, correct=(logits.argmax(1).astype(np.int32) == targets).sum())
        run.adapter.trainer.step(1)
    return seen


def weights(net: gluon.Block) -> np.ndarray:
    return np.concatenate([one.data().asnumpy().ravel() for one in net._collect_params_with_prefix().values()])


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_is_plain_training_on_its_batches(hybrid, optimizer):
    run = make_run(hybrid=hybrid, optimizer=optimizer)
    seen = train(run, epochs=2)
    run.close()
    assert [len(batch) for batch in seen] == 2 * ([8] * 5 + [5, 5])
    net = make_net()
    net(seen[0])
    trainer = make_trainer(net, optimizer)
    for inputs in seen:
        with autograd.record():
            loss = cross_entropy(net(inputs), inputs.sum(1) > 0).mean()
        loss.backward()
        trainer.step(1)
    assert weights(run.adapter.net) == pytest.approx(weights(net), abs=1e-5)


def test_a_worker_alone_needs_no_weight_and_is_refused_where_it_is_zero():
    """The mean over all tokens is its own."""
    without, with_weight = make_run(), make_run()
    train(without, iterations=4)
    with pytest.raises(TrainingError, match=r"weight= of run.backward\(\) adds up to 0 .* in iteration 4"):
        for inputs, targets in with_weight.batches(iterations=5):
            with autograd.record():
                loss = cross_entropy(with_weight.adapter.net(inputs), targets).mean()
            with_weight.backward(loss, weight=mx.nd.array([4 - with_weight.iteration]) * 3.7)
            with_weight.adapter.trainer.step(1)
    assert (weights(without.adapter.net)[:24] == weights(with_weight.adapter.net)[:24]).all()


def test_records_tell_framework_loss_and_accuracy(tmp_path):
    run = make_run(tmp_path, mode="observe", window=3)
    train(run, iterations=6)
    score = lambda inputs, targets: {  # noqa: E731
        "accuracy": (run.adapter.net(inputs).argmax(1).astype(np.int32) == targets).sum(),
        "loss": cross_entropy(run.adapter.net(inputs), targets).sum(),
    }
    found = run.evaluate(make_data(), score, batch_size=7)
    with pytest.raises(TrainingError, match="mxnet has no averages of the weights here; torch has"):
        run.evaluate(make_data(), score, averaged=True)
    run.close()
    recorded = lines(tmp_path)
    assert next(line for line in recorded if line["kind"] == "started")["framework"] == f"mxnet {mx.__version__}"
    windows = [line for line in recorded if line["kind"] == "window"]
    assert windows
    assert all(0 < window["loss"] < 5 and 0 <= window["accuracy"] <= 1 for window in windows)
    assert (windows[0]["trained_ratio"], windows[0]["lr_ratio"]) == pytest.approx((4 / 6, 1.0))
    with autograd.pause():
        logits = run.adapter.net(make_data()._data[0])
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1).asnumpy() == make_data()._data[1]).mean()))
    assert 0 < found["loss"] < 5


def test_gradients_live_in_the_buckets_and_nothing_is_copied():
    run = make_run(bucket_bytes=1)
    train(run, iterations=2)
    *buckets, trailer = run.training.sums.exchange.buckets
    assert (len(buckets), trailer.rounded) == (5, 0)
    gradients = {float(mx.nd.sum(one.grad()).asscalar()) for one in run.adapter.net.collect_params(".*weight").values()}
    assert gradients <= {float(mx.nd.sum(bucket._gradients).asscalar()) for bucket in buckets}


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 0.625), ("sqrt", 0.625**0.5)])
def test_the_learning_rate_follows_the_fewer_samples_at_the_end_of_an_epoch(rule, factor):
    """The last two batches of an epoch have 5 samples in place of 8."""
    run = make_run(lr_rule=rule)
    rates = []
    update = run.adapter.own_update
    run.adapter.own_update = lambda ignore: (
        rates.append(run.adapter.trainer._optimizer._get_lr(0)),
        update(ignore),
    )
    train(run, epochs=1)
    run.close()
    assert rates == pytest.approx([0.1] * 5 + [0.1 * factor] * 2)
    assert [one.lr_mult for one in run.adapter.trainer._params] == [1.0] * len(run.adapter.trainer._params)


def test_clipping_sees_the_global_gradient():
    run = make_run()
    for inputs, targets in run.batches(iterations=1):
        with autograd.record():
            loss = cross_entropy(run.adapter.net(inputs), targets).mean()
        run.backward(loss)
        run.adapter.trainer.allreduce_grads()
        gradients = [one.grad() for one in run.adapter.net.collect_params().values() if one.grad_req != "null"]
        assert gluon.utils.clip_global_norm(gradients, 1e-3) > 1e-3
        run.adapter.trainer.update(1)
    assert run.training.sums.exchange.squared_norm() == pytest.approx(1e-6, rel=1e-3)


def test_a_checkpoint_goes_on_exactly(tmp_path):
    whole = make_run(optimizer="adam")
    train(whole, epochs=3)
    first = make_run(optimizer="adam")
    train(first, iterations=10)
    first.training.plans.rate.noise, first.training.observer.progress.largest_lr = (3.0, 1.0), 0.8
    first.save(tmp_path / "at-10.npz")
    second = make_run(optimizer="adam", resume=tmp_path / "at-10.npz")
    assert (second.iteration, second.epoch) == (10, 1)
    assert (second.training.plans.rate.noise, second.training.observer.progress.largest_lr) == ((3.0, 1.0), 0.8)
    train(second, epochs=3)
    assert (weights(whole.adapter.net) == weights(second.adapter.net)).all()


def test_a_checkpoint_of_another_net_or_optimizer_is_refused(tmp_path):
    run = make_run()
    train(run, iterations=2)
    run.save(tmp_path / "sgd.npz")
    with pytest.raises(
        CheckpointError, match=r"sgd.npz: not of this optimizer: optimizers/0.kind: got 'SGD', expected 'Ad"
    ):
        make_run(optimizer="adam", resume=tmp_path / "sgd.npz")
    run.adapter.net.add(gluon.nn.Dense(2, in_units=2))
    run.adapter.net.initialize()
    run.save(tmp_path / "larger.npz")
    run.close()
    with pytest.raises(CheckpointError, match=r"larger.npz: not of this model: the checkpoint has 'models/0/3.weight'"):
        make_run(resume=tmp_path / "larger.npz")


class Average:
    """A registered object with values of every kind that a checkpoint can hold."""

    def __init__(self, step: int) -> None:
        self.state = {"step": step, "name": "ema", "rates": [0.5, None], "mean": {"w": np.arange(3.0) * step}}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_registered_objects_come_back(tmp_path):
    first = make_run()
    first.register(average=Average(7))
    train(first, iterations=2)
    first.save(tmp_path / "x.npz")
    second = make_run(resume=tmp_path / "x.npz")
    average = Average(0)
    second.register(average=average)
    mean = average.state.pop("mean")
    assert average.state == {"step": 7, "name": "ema", "rates": [0.5, None]}
    assert mean["w"].tolist() == [0.0, 7.0, 14.0]
    average.state["pair"] = (1, 2)
    with pytest.raises(
        TrainingError, match=r"register\(pairs=...\).* its state.pair: got \(1, 2\), expected a number, text"
    ):
        second.register(pairs=average)


def test_the_place_comes_back_in_a_checkpoint_of_the_scripts_own():
    whole, first, second = make_run(), make_run(), make_run()
    train(whole, epochs=3)
    seen = train(first, iterations=10)
    second.load_state_dict(first.state_dict())
    seen += train(second, epochs=3)
    assert (second.iteration, second.epoch) == (whole.iteration, 3)
    assert sum(len(inputs) for inputs in seen) == 3 * SAMPLES


def test_a_worker_without_samples_runs_but_does_not_count(monkeypatch):
    run = make_run(mode="adapt")
    step = Step(Cursor(), (0, 8), Cursor(0, 8))  # as if another worker had all samples
    monkeypatch.setattr(run.training.data.stream._sampler, "plan_step", lambda cursor, sizes: step)
    monkeypatch.setattr(IterationInFlight, "sizes_due", (0,))
    monkeypatch.setattr(IterationInFlight, "spent_due", (0,))
    before = weights(run.adapter.net)
    for inputs, targets in run.batches(iterations=1):
        assert len(inputs) == 2
        with autograd.record():
            loss = cross_entropy(run.adapter.net(inputs), targets).mean()
        run.backward(loss)
        run.adapter.trainer.step(1, ignore_stale_grad=True)
    run.close()
    trained = [one.grad_req != "null" for one in run.adapter.net._collect_params_with_prefix().values()]
    assert any(trained)
    means = run.adapter.net[1].running_mean.data().size + run.adapter.net[1].running_var.data().size
    assert int((weights(run.adapter.net) != before).sum()) <= means, (
        "weights moved by a gradient that counts for nothing"
    )


class Sum(gluon.Block):
    """Of two layers, the second of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.both = True
        self.first, self.second = gluon.nn.Dense(2, in_units=4), gluon.nn.Dense(2, in_units=4)
        self.register_child(self.first)
        self.register_child(self.second)
        self.initialize()

    def forward(self, inputs: Any) -> Any:
        return self.first(inputs) + self.second(inputs) if self.both else self.first(inputs)


def test_a_layer_that_backward_left_out_keeps_its_weights():
    """Its gradient is zero, not the sum of the iteration before."""
    net = Sum()
    run = open_run(net, make_trainer(net, momentum=0.0), make_data(), Session(settings_for(), "mxnet"))
    held = []
    for inputs, targets in run.batches(iterations=2):
        net.both = run.iteration == 0
        with autograd.record():
            loss = cross_entropy(net(inputs), targets).mean()
        run.backward(loss)
        run.adapter.trainer.step(
            1, ignore_stale_grad=True
        )  # as in plain MXNet, which refuses a stale gradient otherwise
        held.append((weights(net.first), weights(net.second)))
    run.close()
    (first, second), (moved, kept) = held
    assert (first != moved).any()
    assert (second == kept).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(bad):
    run = make_run()
    before: list[np.ndarray] = []

    def trained() -> list[np.ndarray]:
        return [one.data().asnumpy() for one in run.adapter.net.collect_params().values() if one.grad_req != "null"]

    with pytest.raises(TrainingError, match=r"loss of worker 0 is not finite in iteration 1"):
        for inputs, targets in run.batches(iterations=3):
            with autograd.record():
                loss = cross_entropy(run.adapter.net(inputs), targets).mean() * (bad if run.iteration == 1 else 1)
            before = trained()
            run.backward(loss)
            run.adapter.trainer.step(1)
    assert before
    assert all((a == b).all() for a, b in zip(before, trained(), strict=True))


def test_misuse_is_named():
    run = make_run()
    batches = run.batches(epochs=1)
    inputs, targets = next(batches)
    with autograd.record():
        losses = cross_entropy(run.adapter.net(inputs), targets)
    with pytest.raises(TrainingError, match=r"got 8 losses, expected their mean"):
        run.backward(losses)
    run.close()

    run = make_run()
    with pytest.raises(TrainingError, match=r"trainer.step\(8\) would divide.*call trainer.step\(1\)"):
        for inputs, targets in run.batches(epochs=1):
            with autograd.record():
                loss = cross_entropy(run.adapter.net(inputs), targets).mean()
            run.backward(loss)
            run.adapter.trainer.step(8)


def test_passes_are_those_of_each_call_and_end_with_a_break():
    run = make_run()
    batches = []
    for _ in range(2):
        for number in run.epochs(2):
            batches.append(0)
            for inputs, targets in run.batches():
                with autograd.record():
                    loss = cross_entropy(run.adapter.net(inputs), targets).mean()
                run.backward(loss)
                run.adapter.trainer.step(1)
                batches[-1] += 1
                if number == 0 and batches[-1] == 3:
                    break
    assert (batches, run.epoch, run.iteration) == ([3, 7, 3, 7], 4, 20)


def test_a_batch_ahead_is_refused_where_sizes_differ_because_no_loss_shows_its_batch():
    run = make_run()
    batches = run.batches(epochs=1)
    held = [next(batches) for _ in range(6)]  # of 8 samples, and the last one of 5
    for inputs, targets in held[-2:]:
        with autograd.record():
            loss = cross_entropy(run.adapter.net(inputs), targets).mean()
        with pytest.raises(TrainingError, match=r"iterations 4 and 5 were taken .* call run.backward\(0 \* loss\)"):
            run.backward(loss)


def test_a_schedule_that_training_ends_far_from_its_end_is_told(tmp_path):
    (tmp_path / "workers").mkdir()
    net = make_net()
    trainer = make_trainer(net, lr_scheduler=mx.lr_scheduler.CosineScheduler(max_update=40, base_lr=0.1))
    run = open_run(net, trainer, make_data(), Session(settings_for(tmp_path), "mxnet"))
    train(run, epochs=2)
    run.close()
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "degraded" and line["what"] == "learning rate"]
    assert "CosineScheduler has made 14 steps at the end of training, and was made for 40" in told["detail"]


def test_models_that_cannot_be_trained_are_refused():
    def attach(net: gluon.Block) -> None:
        open_run(net, make_trainer(net), make_data(), Session(settings_for(), "mxnet"))

    halves = gluon.nn.Dense(2, in_units=4, dtype="float16")
    halves.initialize()
    with pytest.raises(TrainingError, match=r"has type float16; .* keep the parameters in float32"):
        attach(halves)
    adding = gluon.nn.Dense(2, in_units=4)
    adding.initialize()
    adding.collect_params().setattr("grad_req", "add")
    with pytest.raises(TrainingError, match="has grad_req 'add'"):
        attach(adding)


def test_a_ring_is_torchs():
    with pytest.raises(EnvironmentNotReady, match="comm: gloo sums arrays of torch, and this worker computes with mx"):
        Session(settings_for(comm="gloo"), "mxnet")


def test_dicts_strings_and_nested_samples_become_batches():
    batch = fetch([{"x": (np.float32(n), [n, 2 * n]), "text": str(n)} for n in range(5)], np.array([1, 3]))
    assert batch["text"] == ["1", "3"]
    assert batch["x"][0].asnumpy().tolist() == [1.0, 3.0]
    assert batch["x"][1][1].asnumpy().tolist() == [2, 6]


def test_samples_that_cannot_be_stacked_are_one_error():
    ragged = [(mx.nd.zeros(4 + n), n) for n in range(3)]
    with pytest.raises(TrainingError, match=r"sample\[0\] has the shapes \(4,\), \(5,\), \(6,\); pad them"):
        fetch(ragged, np.arange(3))
    with pytest.raises(TrainingError, match="sample is None"):
        fetch([1.0, None], np.arange(2))


def test_an_array_data_set_with_samples_of_its_own_is_asked_for_them():
    class Doubled(gluon.data.ArrayDataset):
        def __getitem__(self, index):
            return 2 * super().__getitem__(index)

    assert fetch(Doubled(np.arange(4.0)), np.array([1, 3])).asnumpy().tolist() == [2.0, 6.0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_loss_that_is_not_finite_takes_the_state_back_and_the_schedule_goes_on(tmp_path, optimizer):
    run = make_run(tmp_path, mode="adapt", lr="guard", optimizer=optimizer)
    run.adapter.trainer._optimizer.lr_scheduler = mx.lr_scheduler.FactorScheduler(step=30, factor=0.5, base_lr=0.1)
    states, rates = [], []
    for inputs, targets in run.batches(iterations=60):
        states.append((weights(run.adapter.net), optimizer_state(run)))
        with autograd.record():
            loss = cross_entropy(run.adapter.net(inputs), targets).mean() * (np.nan if run.iteration == 45 else 1)
        run.backward(loss)
        run.adapter.trainer.step(1)
        rates.append(run.adapter.trainer.learning_rate)
    run.close()
    for found, copied in zip(states[46], states[40], strict=True):
        assert np.array_equal(found, copied)
    assert not np.array_equal(states[45][0], states[40][0])
    assert np.isfinite(weights(run.adapter.net)).all()
    assert [iteration for iteration, rate in enumerate(rates) if rate != rates[iteration - 1]] == [0, 30]
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "rollback"]
    assert (told["iteration"], told["back_to"], told["lr_guard"]) == (45, 40, 0.5)


def test_a_loop_over_the_loader_of_the_run_is_for_torch(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(TrainingError, match=r"not possible in mxnet: loop over run.batches\(\)"):
        iter(run.loader)
    run.close()


def optimizer_state(run: Run) -> np.ndarray:
    """All its arrays, one after the other."""
    arrays = []
    for state in run.adapter.trainer._updaters[0].states.values():
        arrays += [one.asnumpy().ravel() for one in (state if isinstance(state, tuple) else (state,))]
    return np.concatenate(arrays) if arrays else np.zeros(0)
