"""The study of found rates: what its rows say, and that a race in it is the product's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.studies import found_rates
from benchmarks.studies.found_rates import HELD_OUT, Cell, Row, report


def row(workload: str, seed: int, **changes: Any) -> Row:
    given = {"script_rate": "x4", "winner_octaves": "0.5", "rate_octaves": "0.5", "samples": "1000"}
    return {"workload": workload, "seed": seed, "race_samples": "200", "tuned_samples": "1000"} | given | changes


def rows(workload: str, **changes: Any) -> list[Row]:
    return [row(workload, seed, script_rate=name, **changes) for seed in (1, 2) for name in found_rates.ERRORS]


def test_the_bar_counts_the_race_and_the_workload_held_out_teaches_nothing() -> None:
    found = report(
        [
            *rows("fashion-cnn"),
            *rows("text-gpt", samples="1100", winner_octaves="-1.5"),
            *rows(HELD_OUT, winner_octaves="4"),
        ]
    )
    assert "winners lie -0.50 octaves" in found.tables and "50% are within a factor 2" in found.tables
    assert "for the fifth would be -1.50 to +0.50 octaves" in found.tables
    assert "the race counted: 2 of 3 workloads" in found.tables, "1.1 and a race of 0.2 are above the bar"
    assert "| `text-gpt` | x4 | +0.5, +0.5 | 1.1 [1.1, 1.1] | 1.3 [1.3, 1.3] |" in found.tables


def test_a_race_tries_the_same_rates_wherever_the_script_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(600, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    samples_of = (inputs, (inputs.mean((1, 2, 3)) * 100).long().clamp(0, 9))
    monkeypatch.setattr(found_rates, "_tensors", lambda name: (samples_of, samples_of, (1, 28, 28), 10))
    cell = Cell(HELD_OUT, 1)
    high, samples = found_rates.race(cell, 2)
    low, _ = found_rates.race(cell, -2)
    shared = {octave + 2 for octave in high.losses} & {octave - 2 for octave in low.losses}
    assert 0 in shared
    assert all(high.losses[octave - 2] == low.losses[octave + 2] for octave in shared)
    assert samples == len(high.losses) * (found_rates.TRAINED + 1 + found_rates.JUDGED) * 192 // found_rates.FRACTION
