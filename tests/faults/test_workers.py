"""A worker fails in every way it can; worker_rows.py has the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.job import job
from tests.faults.table import DONE, WorkerFault
from tests.faults.worker_rows import WORKER_FAULTS

pytestmark = pytest.mark.timeout(90)

SCRIPT = """
if rank == 0:
    started()
    (folder / "others").touch()
    if {ends_well}:
        finished()
    else:
        wait_for("go")
        os._exit(9)
else:
    wait_for("others")
    if {trained}:
        started()
    exec({body!r})
"""


@pytest.mark.parametrize("row", WORKER_FAULTS, ids=lambda row: row.key)
def test_a_worker_in_trouble(tmp_path: Path, row: WorkerFault) -> None:
    script = SCRIPT.format(ends_well=row.outcome == DONE, trained=row.trained, body=row.body)
    with job(tmp_path, script, settings=row.settings) as running:
        running.ends_with(row.outcome)
