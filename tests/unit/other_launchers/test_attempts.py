"""From which checkpoint a job goes on that its launcher has started again."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from dynamix_ps.other_launchers.attempts import LAUNCH, checkpoint_of_earlier_attempt
from dynamix_ps.run_record.run_folder import RunFolder


@pytest.fixture
def before(tmp_path: Path) -> RunFolder:
    """The folder of an attempt that had gone on from a checkpoint itself."""
    folder = RunFolder.create(tmp_path, "t", datetime.now(timezone.utc), "0" * 8)
    folder.events_file.write_text(
        json.dumps({"kind": LAUNCH, "agents": ["a", "b"], "resume": "/of/the/first.pt"}) + "\n"
    )
    folder.link_latest()
    return folder


def test_it_goes_on_from_the_newest_checkpoint(before: RunFolder) -> None:
    newest = before.checkpoints_dir / "last.pt"
    newest.touch()
    assert checkpoint_of_earlier_attempt(before.path.parent, "b") == newest


def test_an_attempt_without_a_checkpoint_leaves_that_of_the_attempt_before(before: RunFolder) -> None:
    assert checkpoint_of_earlier_attempt(before.path.parent, "a") == Path("/of/the/first.pt")


def test_checkpoints_of_other_jobs_are_left_alone(before: RunFolder) -> None:
    (before.checkpoints_dir / "last.pt").touch()
    assert checkpoint_of_earlier_attempt(before.path.parent, "another") is None
    assert checkpoint_of_earlier_attempt(before.path / "elsewhere", "a") is None
