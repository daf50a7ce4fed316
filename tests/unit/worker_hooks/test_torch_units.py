"""Weights other than samples, and sizes in tokens, in one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import (
    SAMPLES,
    lines,
    make_data,
    make_run,
    open_run,
    settings_for,
    train,
    weights,
)
from worker_hooks.run import Run
from worker_hooks.session import Session


def train_weighted(run: Run, units: list[float], **limits: int) -> list[float]:
    """The usual loop with these weights, one per iteration; returns the learning rates of the steps."""
    rates: list[float] = []
    optimizer = run.optimizers[0]
    handle = optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    for inputs, targets in run.batches(**limits):
        optimizer.zero_grad()
        logits = run.models[0](inputs)
        loss = nn.functional.cross_entropy(logits, targets)
        run.backward(loss, correct=units[run.iteration] / 4, weight=torch.tensor(units[run.iteration]))
        optimizer.step()
    handle.remove()
    return rates


def test_a_worker_alone_needs_no_weight():
    """The mean over all tokens is its own, bit by bit."""
    without, with_weight = make_run(), make_run()
    train(without, iterations=5)
    train_weighted(with_weight, [3.7, 1000.1, 1.0, 0.1, 7.0], iterations=5)
    assert torch.equal(weights(without), weights(with_weight))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_weight_that_is_none_stops_before_the_weights_change(bad):
    run = make_run()
    before = weights(run)
    with pytest.raises(TrainingError, match=r"weight= of run.backward\(\) .* in iteration 0"):
        train_weighted(run, [bad], iterations=1)
    assert torch.equal(weights(run), before)


def test_the_learning_rate_follows_the_units_in_the_sum(tmp_path):
    units = [80.0, 160.0, 60.0, 100.0]
    run = make_run(tmp_path, mode="adapt", lr_rule="linear")
    rates = train_weighted(run, units, iterations=4)
    run.close()
    means = [10, 15, 12.5, 12.5]  # units per sample so far; batches of 8 samples
    assert rates == pytest.approx([0.1 * one / mean / 8 for one, mean in zip(units, means, strict=True)])


def test_a_resumed_run_goes_on_with_its_mean_of_units(tmp_path):
    units = [80.0, 160.0, 60.0, 100.0, 90.0, 70.0]
    whole, first = make_run(lr_rule="linear"), make_run(lr_rule="linear")
    train_weighted(whole, units, iterations=6)
    train_weighted(first, units, iterations=3)
    first.save(tmp_path / "x.pt")
    second = make_run(lr_rule="linear", resume=tmp_path / "x.pt")
    train_weighted(second, units, iterations=6)
    assert torch.equal(weights(whole), weights(second))


def test_windows_tell_the_units(tmp_path):
    run = make_run(tmp_path, mode="observe")
    train_weighted(run, [10.0 * (number + 1) for number in range(8)], iterations=8)
    run.close()
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert [w["units"] for w in windows] == [20 + 30 + 40, 50 + 60 + 70]
    assert [w["global_units"] for w in windows] == [w["units"] for w in windows]
    assert [w["accuracy"] for w in windows] == pytest.approx([0.25, 0.25])
    assert [w["global_loss"] for w in windows] == pytest.approx([w["loss"] for w in windows], rel=1e-5)
    assert all(w["samples"] == 24 for w in windows[:1])


LENGTHS = [1 + (7 * number) % 10 for number in range(SAMPLES)]  # 275 tokens


def make_token_run(folder: Path | None = None, lengths: Any = LENGTHS, **changes: Any) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    session = Session(settings_for(folder, **{"unit": "tokens", "sizes": (40,)} | changes), "torch")
    return open_run([model], [optimizer], make_data(), session, lengths=lengths)


def test_a_size_in_tokens_takes_every_sample_once(tmp_path):
    run = make_token_run(tmp_path, mode="observe")
    seen, tokens = [], []
    order = torch.utils.data.TensorDataset(*make_data().tensors).tensors[0].sum(1).tolist()
    for inputs, targets in run.batches(epochs=2):
        run.optimizers[0].zero_grad()
        numbers = [order.index(value) for value in inputs.sum(1).tolist()]
        seen += numbers
        tokens.append(sum(LENGTHS[number] for number in numbers))
        assert run.batch_size == 40
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets), weight=tokens[-1])
        run.optimizers[0].step()
    run.close()
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))
    assert max(tokens) <= 40 and min(tokens) >= 18
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert (
        [w["samples"] for w in windows]
        == [w["units"] for w in windows]
        == [sum(tokens[i : i + 3]) for i in (1, 4, 7, 10)]
    )
    assert all(w["batch_size"] == 40 for w in windows)


def test_a_resume_in_tokens_goes_on_in_mid_epoch(tmp_path):
    whole, first = make_token_run(), make_token_run()
    train(whole, epochs=2)
    train(first, iterations=3)
    first.save(tmp_path / "x.pt")
    second = make_token_run(resume=tmp_path / "x.pt")
    train(second, epochs=2)
    assert torch.equal(weights(whole), weights(second))
    with pytest.raises(
        TrainingError, match=r"sizes of the checkpoint are in tokens, .* resume with batch: {unit: tokens}"
    ):
        make_token_run(resume=tmp_path / "x.pt", unit="padded_tokens")


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        (None, "got none, expected 50 numbers"),
        (LENGTHS[1:], r"got shape \(49,\), expected 50 numbers"),
        ([0.5] * SAMPLES, "got float64 from 0.5 on, expected whole numbers from 0 on"),
        ([-1] * SAMPLES, "got int64 from -1 on"),
    ],
)
def test_sizes_in_tokens_need_the_tokens_of_every_sample(lengths, told):
    with pytest.raises(TrainingError, match=rf"batch.unit is tokens .* attach\(\) needs lengths=.*: {told}"):
        make_token_run(lengths=lengths)


def test_a_data_set_with_too_few_tokens_is_refused():
    with pytest.raises(TrainingError, match=r"the data set has 275 tokens but one iteration takes 300"):
        make_token_run(sizes=(300,))
