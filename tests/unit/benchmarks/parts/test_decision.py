from __future__ import annotations

import pytest

from benchmarks.parts.decision import POLICIES, compare, measure
from dynamix_ps.policy.learned.advice import SETTLING


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_measured_on_plans_it_made(name: str) -> None:
    windows = 2 * SETTLING  # ours may keep all sizes in the first ones
    row = measure(name, workers=4, windows=windows)
    assert 0 < row["plans"] <= windows
    for part in ("decide", "path", "disk"):
        assert 0 < row[f"{part}_p50_ms"] <= row[f"{part}_p99_ms"]


def test_ppo_and_goodput_are_compared_in_one_run() -> None:
    figures = compare(workers=4, windows=6)
    assert 0 < figures["ppo_p50_ms"] <= figures["ppo_p99_ms"]
    assert figures["ratio_to_goodput"] == figures["ppo_p50_ms"] / figures["goodput_p50_ms"]
