"""The study of critical batch sizes: what counts as critical, what a branch shares, one point at toy size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks.studies.language_models import critical_batch
from benchmarks.studies.language_models.critical_batch import (
    BATCH,
    FACTORS,
    LR,
    Branching,
    Training,
    branchings,
    draw_losses,
    largest_within,
    table_of,
)
from benchmarks.workloads.data_set import Samples
from benchmarks.workloads.text import BYTES, CONTEXT
from benchmarks.workloads.torch_samples import SampleSet


def training() -> Training:
    codes = np.random.default_rng(0).integers(97, 105, size=(256, CONTEXT + 1))
    samples = SampleSet(Samples(codes[:, :-1], codes[:, 1:], "letters", None))
    return Training(samples, (CONTEXT,), BYTES, seed=0)


def weights(one: Training) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(one.model.parameters()).detach().clone()


def test_the_critical_batch_is_the_largest_up_to_which_all_losses_stay_near() -> None:
    assert largest_within({1: 2.0, 2: 2.005, 4: 1.99, 8: 2.02, 16: 2.0}) == 4
    assert largest_within({1: 2.0, 2: 2.02}) == 1
    assert largest_within({1: 2.0, 2: math.nan, 4: 2.0}) == 1
    assert Branching(0, 10, {1: 2.0, 2: 2.0}, 3.0).critical == 2 * BATCH


def test_a_branch_goes_on_from_the_same_state_and_leaves_the_training_alone() -> None:
    trunk = training()
    trunk.train(0, 32, BATCH)
    same, larger = trunk.branch(1), trunk.branch(4)
    before = weights(trunk)
    larger.train(32, 160, 4 * BATCH)
    same.train(32, 64, BATCH)
    assert torch.equal(weights(trunk), before) and not torch.equal(weights(larger), before)
    assert larger.optimizer.param_groups[0]["lr"] == 2 * LR and trunk.optimizer.param_groups[0]["lr"] == LR
    trunk.train(32, 64, BATCH)
    assert torch.equal(weights(trunk), weights(same))  # Adam's state came along, and was not shared


def test_watching_the_noise_changes_no_weight() -> None:
    one, other = training(), training()
    one.train(0, 128, BATCH, watch=True)
    other.train(0, 128, BATCH)
    assert torch.equal(weights(one), weights(other))
    assert math.isfinite(one.noise.value.variance) and not math.isfinite(other.noise.value.variance)


def test_one_point_at_toy_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(critical_batch, "FACTORS", (1, 2))
    (found,) = branchings(0, (128,), 64)
    assert list(found.losses) == [1, 2] and all(2 < loss < 6 for loss in found.losses.values())
    full = Branching(0, 128, dict.fromkeys(FACTORS, 2.0), 50.0)
    monkeypatch.undo()
    (row,) = table_of([full, Branching(1, 128, dict.fromkeys(FACTORS, 2.0) | {4: 2.2}, 70.0)])
    assert row["critical batch by branching"] == "17,408 (2,048 to 32,768)"
    assert row["noise scale"] == "3,840 (3,200 to 4,480)" and row["x4"] == "+0.100"
    figure = Figure()
    draw_losses(figure, [full])
    assert len(figure.axes[0].lines) == 3  # losses, noise scale, tolerance
