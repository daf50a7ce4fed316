"""What several integration tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_plane import config
from tests.integration.arbitrator_process import ArbitratorProcess


@pytest.fixture
def arbitrator(tmp_path: Path) -> Iterator[ArbitratorProcess]:
    """A real arbitrator process that listens; ended with the test, also when it never came up."""
    process = ArbitratorProcess(tmp_path / "run", config())
    try:
        process.start()
        process.wait_listening()
        yield process
    finally:
        process.kill()
