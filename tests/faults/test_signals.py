"""Processes of a run are killed or stopped from outside; signal_rows.py has the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.job import job
from tests.faults.signal_rows import SIGNAL_FAULTS
from tests.faults.table import SignalFault

pytestmark = pytest.mark.timeout(90)

SCRIPT = """
if {trained}:
    started()
print("in place", flush=True)
wait_for("finish")
finished()
"""


@pytest.mark.parametrize("row", SIGNAL_FAULTS, ids=lambda row: row.key)
def test_a_signal_from_outside(tmp_path: Path, row: SignalFault) -> None:
    script = SCRIPT.format(trained=row.trained)
    with job(tmp_path, script, row.comm, row.mode, row.settings) as running:
        running.wait_until_said("in place", times=2)
        running.send(row.target, *row.signals)
        if row.target == "reaper":
            running.wait_until_said("started again")
        if row.goes_on:
            running.let_workers_finish()
        running.ends_with(row.outcome)
