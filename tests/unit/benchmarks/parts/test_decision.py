from __future__ import annotations

import pytest

from benchmarks.parts.decision import PARTS, POLICIES, compare, late, measure


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_measured_on_plans_it_made(name: str) -> None:
    windows = 8  # ours may keep all sizes in the first ones
    row = measure(name, workers=4, windows=windows)
    assert 0 < row["plans"] <= windows
    for part in PARTS:
        assert 0 < row[f"{part}_p50_ms"] <= row[f"{part}_p99_ms"]


def test_ppo_and_goodput_are_compared_in_one_run() -> None:
    figures = compare(workers=4, windows=6)
    assert 0 < figures["ppo_p50_ms"] <= figures["ppo_p99_ms"]
    assert figures["ratio_to_goodput"] == figures["ppo_p50_ms"] / figures["goodput_p50_ms"]


def test_rows_above_the_limit_of_their_p99_are_named() -> None:
    quick, slow = ({"policy": name, "workers": 32, "limit_ms": 2.0} for name in ("quick", "slow"))
    rows = [quick | {"cpu_p99_ms": 2.0}, slow | {"cpu_p99_ms": 2.1}]
    assert late(rows, "cpu") == ["slow at 32"]
