from __future__ import annotations

import pytest

from benchmarks.decision import POLICIES, measure


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_measured_on_plans_it_made(name: str) -> None:
    row = measure(name, workers=4, windows=3)
    assert 0 < row["plans"] <= 3
    for part in ("decide", "path", "disk"):
        assert 0 < row[f"{part}_p50_ms"] <= row[f"{part}_p99_ms"]
