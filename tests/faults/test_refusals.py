"""What cannot work is refused before anything is started; refusal_rows.py has the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.job import output_of
from tests.faults.refusal_rows import REFUSALS
from tests.faults.table import Refusal
from tests.launching import dynamix

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.key)
def test_a_launch_that_cannot_work(tmp_path: Path, row: Refusal) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_bytes(row.content)
    process = dynamix("launch", "-c", str(file), *row.arguments, cwd=tmp_path)
    output = output_of(process)
    assert process.returncode == row.outcome.exit_code, output
    assert re.search(row.outcome.says.replace("FILE", re.escape(str(file))), output), output
    assert "Traceback" not in output
    assert not (tmp_path / "ran").exists()
