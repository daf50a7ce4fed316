from __future__ import annotations

import pytest

from benchmarks.parts.decision import POLICIES, measure
from dynamix_ps.policy.learned.advice import SETTLING


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_measured_on_plans_it_made(name: str) -> None:
    windows = 2 * SETTLING  # ours may keep all sizes in the first ones
    row = measure(name, workers=4, windows=windows)
    assert 0 < row["plans"] <= windows
    for part in ("decide", "path", "disk"):
        assert 0 < row[f"{part}_p50_ms"] <= row[f"{part}_p99_ms"]
