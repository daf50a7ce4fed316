"""An empty run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import new_folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_folder(tmp_path)
