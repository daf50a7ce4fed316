"""Fixtures shared by unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probes import FakeCollector, probe_in_thread


@pytest.fixture
def collector() -> FakeCollector:
    return FakeCollector()


@pytest.fixture
def path(tmp_path: Path, collector: FakeCollector) -> Iterator[Path]:
    """Where a probe in this process answers, with what `collector` finds."""
    with probe_in_thread(tmp_path / "p.sock", collector):
        yield tmp_path / "p.sock"
