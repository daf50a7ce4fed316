"""Readings of DYNAMIX's reward beside its claims: targets, times, points, and what the tables say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.report.paper_mode import (
    BEST,
    CONTENDERS,
    OURS,
    PER_ITERATION,
    PER_SAMPLE,
    REFERENCES,
    TARGETS,
    Group,
    draw_times,
    figures,
    group_of,
    tables,
)
from dynamix_ps.rehearsal.outcome import Evaluated, Outcome

SAMPLES_PER_S = {"static-32": 100.0, "static-64": 200.0, "static-128": 400.0, "static-256": 500.0}
SPEEDS = SAMPLES_PER_S | {PER_ITERATION: 100.0, PER_SAMPLE: 1000.0, OURS: 400.0}


def outcome(samples_per_s: float, best: float = 0.8, **changes: Any) -> Outcome:
    """Accuracy rises by a point with every hundred samples, from 0.1 to the best; 10,000 samples in all."""
    curve = tuple(
        Evaluated(samples / samples_per_s, samples, {"accuracy": min(0.1 + samples / 10_000, best)})
        for samples in range(100, 10_001, 100)
    )
    given: dict[str, Any] = {
        "train_s": curve[-1].time_s,
        "iterations": 25,
        "plans": 0,
        "passes": 1,
        "diverged": False,
        "curve": curve,
    }
    return Outcome(**(given | changes), higher_is_better={"accuracy": True})


def group(seeds: int = 2, **changed: Outcome) -> Group:
    outcomes = {(name, seed): outcome(speed) for name, speed in SPEEDS.items() for seed in range(seeds)}
    found = group_of("vgg", "equal", 1.0, outcomes | {(name, 0): one for name, one in changed.items()})
    assert found is not None
    return found


def test_targets_are_parts_of_the_way_that_all_sizes_of_the_paper_go() -> None:
    first, best = 0.115, 0.6
    found = group(1, **{"static-128": outcome(400.0, best), "static-256": outcome(500.0, 0.2)}).targets
    assert [target.value for target in found] == pytest.approx([first + part * (best - first) for part in TARGETS])


def test_times_are_relative_to_each_size_and_to_the_best() -> None:
    found = group()
    assert found.best == "static-256"
    times = {one: found.time(PER_SAMPLE, one).value for one in REFERENCES}
    expected = {"static-32": 0.1, "static-64": 0.2, "static-128": 0.4, BEST: 0.5}
    assert times == pytest.approx(expected, rel=1e-6)
    assert found.time(PER_ITERATION, "static-32").value == pytest.approx(1.0)


def test_who_never_arrives_counts_with_the_longest_time() -> None:
    found = group(1, **{PER_SAMPLE: outcome(800.0, best=0.3)})
    longest_s = found.times_s["static-32"][:, 0]
    assert found.times_s[PER_SAMPLE][:, 0] == pytest.approx(longest_s)
    assert found.missed(PER_SAMPLE) == len(TARGETS) and found.missed(OURS) == 0
    slow = group(1, **{PER_SAMPLE: outcome(10.0, best=0.3)})
    assert slow.times_s[PER_SAMPLE][:, 0] == pytest.approx(1000.0)


def test_points_at_equal_time_and_after_equal_samples() -> None:
    found = group()
    # after 10 s, where the first ends: 1,000 samples of the smallest size, 4,000 of the third
    assert found.points(PER_SAMPLE, "static-32").value == pytest.approx(80 - 20)
    assert found.points(PER_SAMPLE, "static-128").value == pytest.approx(80 - 50)
    assert found.points(PER_SAMPLE, "static-32", at_end=True).value == pytest.approx(0.0)
    assert found.points(PER_ITERATION, "static-32").value == 0


def test_a_training_that_broke_counts_as_guessing() -> None:
    broke = outcome(800.0, train_s=1.0, diverged=True)
    for curve in (broke.curve[:8], ()):
        found = group(1, **{PER_SAMPLE: outcome(800.0, train_s=1.0, diverged=True, curve=curve)})
        assert found.points(PER_SAMPLE, "static-32", at_end=True).value == pytest.approx(10 - 80)
        assert found.missed(PER_SAMPLE) == len(TARGETS)
        assert np.isfinite(found.time(PER_SAMPLE, "static-32").value)
        assert "0 of 3, 1 diverged" in tables([found])


def test_only_complete_seeds_count() -> None:
    outcomes = {(name, seed): outcome(speed) for name, speed in SPEEDS.items() for seed in (1, 2)}
    del outcomes[OURS, 2]
    found = group_of("vgg", "equal", 1.0, outcomes)
    assert found is not None and found.seeds == (1,)
    del outcomes[OURS, 1]
    assert group_of("vgg", "equal", 1.0, outcomes) is None


def test_tables_put_both_readings_beside_the_claims() -> None:
    slower = {(name, 0): outcome(0.5 * speed if name == PER_SAMPLE else speed) for name, speed in SPEEDS.items()}
    other = group_of("resnet", "mixed", 0.25, slower)
    assert other is not None
    text = tables([group(), other])
    assert "| the paper: abstract, up to 32 nodes | down to 0.54, up to +6.3 points |  |  |  |  |" in text
    assert "| the paper: VGG11, SGD (second hand) | 0.16, +0.0 points |" in text
    assert "| here: `paper, per sample` |  | 0.14 (0.10 to 0.20), " in text
    assert "| `vgg` | equal | x1 | 2 | `paper, per sample` | 0.10 | 0.20 | 0.40 | 0.50 (static-256) |" in text
    assert "| `resnet` | mixed | x0.25 | 1 | `paper, per sample` | 0.20 | 0.40 | 0.80 | 1.00 (static-256) |" in text
    assert "| `vgg` | equal | x1 | 2 | `static-64` | 100 | " in text  # 400 samples in each iteration


def test_figures_and_picture_have_every_group() -> None:
    from matplotlib.figure import Figure

    among = [group(), group(1)]
    shown = figures(among)
    assert [one["seeds"] for one in shown] == [[0, 1], [0]]
    assert shown[0]["contenders"][PER_SAMPLE]["time"]["static-128"] == pytest.approx(0.4)
    figure = Figure()
    draw_times(figure, among)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == 2 * ["vgg, equal, rate x1: per iteration", "vgg, equal, rate x1: per sample"]
    assert set(SPEEDS) == set(CONTENDERS)
