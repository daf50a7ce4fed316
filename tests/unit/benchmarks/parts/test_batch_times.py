"""Shapes of time over batch size are found again in times that were made with them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.parts.batch_times import SIZES, shapes
from dynamix_ps.sim.cluster.effects.cliffs import extra
from dynamix_ps.sim.cluster.effects.tiles import padding

SIZE = np.array(SIZES, dtype=np.float64)


def test_a_line_is_a_line() -> None:
    found = shapes(SIZE, 0.01 + 0.001 * SIZE)
    assert found["line"] == pytest.approx({"fixed_ms": 10, "per_sample_ms": 1, "off": 0}, abs=1e-6)
    assert found["tiles"]["part"] == pytest.approx(0, abs=1e-6)
    assert found["cliff"]["slope"] == pytest.approx(1, abs=1e-6)


def test_tiles_are_found_with_their_size_and_their_part() -> None:
    found = shapes(SIZE, 0.01 + 0.001 * (SIZE + padding(SIZE, np.float64(32), np.float64(0.6))))
    assert found["tiles"] == pytest.approx({"samples": 32, "part": 0.6, "off": 0}, abs=1e-6)
    assert found["line"]["off"] > 0.03


def test_a_cliff_is_found_where_it_is() -> None:
    found = shapes(SIZE, 0.01 + 0.001 * (SIZE + extra(SIZE, np.float64(256), np.float32(2.4))))
    assert found["cliff"] == pytest.approx({"above": 256, "slope": 2.4, "off": 0}, abs=1e-5)
    assert found["line"]["off"] > 0.03
