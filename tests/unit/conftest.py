"""Fixtures shared by unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.probes import FakeCollector, probe_in_thread


@pytest.fixture
def collector() -> FakeCollector:
    return FakeCollector()


@pytest.fixture
def path(tmp_path: Path, collector: FakeCollector) -> Iterator[Path]:
    """Where a probe in this process answers, with what `collector` finds."""
    with probe_in_thread(tmp_path / "p.sock", collector):
        yield tmp_path / "p.sock"


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """The test is skipped where none is installed."""
    return Browser(tmp_path_factory.mktemp("browser"))
