"""An elastic job with too few workers waits, then ends with a checkpoint; one that is lost as a whole begins again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.membership.elastic_story import Story
from tests.launching import assert_nothing_left, ends, run_id_in

pytestmark = pytest.mark.timeout(240)

ITERATIONS, LOST_IN, SAVED_EVERY = 50, 20, 7
# These workers are killed in the first job alone.
TWO_LOST = f"""\
def fault(rank, iteration):
    if rank in LOST and iteration == {LOST_IN} and os.environ.get("DYNAMIX_RESUME") is None:
        os.kill(os.getpid(), signal.SIGKILL)
"""
ALL_SERVERS_LOST = f"""\
import shutil
def fault(rank, iteration):
    if rank == 0 and iteration == {LOST_IN} and os.environ.get("DYNAMIX_RESUME") is None:
        shutil.copy("sums-0.jsonl", "before.jsonl")
        kill_server(0, iteration)
        kill_server(1, iteration)
"""


@pytest.mark.parametrize(("comm", "left"), [("byteps", [1, 2]), ("gloo", [0, 2])])
def test_too_few_end_with_a_checkpoint_from_which_others_go_on_exactly(
    comm: str, left: list[int], tmp_path: Path
) -> None:
    """Over BytePS the one that leads is lost, and another one saves."""
    fault, keys = TWO_LOST.replace("LOST", f"{sorted({0, 1, 2, 3} - set(left))}"), "checkpoint_every: 1000\n"
    story = Story(tmp_path, ITERATIONS, fault, min_workers=3, keys=keys, comm=comm, elastic=", join_wait_s: 1.0")
    output = ends(story.launch(), 4, limit_s=100)
    story.assert_nothing_left()
    folder, summary = story.record, story.summary()
    before = story.sums(left[0])
    last, waited = len(before), ", and none came within 1 s"
    too_few = "2 workers are left, elastic.min_workers is 3"
    saved = f"iteration {last}, the last one, is in the newest checkpoint"
    assert "was killed by SIGKILL" in summary["reason"], output
    assert summary["reason"].endswith(f"; {too_few}{waited}; {saved}"), output
    assert f"{too_few}: the job ends, with a checkpoint" in output
    assert f"{too_few}: they wait up to 1 s" in output
    assert f"to go on from the newest checkpoint: {summary['resume_command']}" in output
    assert "dynamix launch --resume " in summary["resume_command"]
    assert [one["present"] for one in before[LOST_IN:]] == [left] * (last - LOST_IN) and last - LOST_IN <= 3

    checkpoint = folder.newest_checkpoint()
    assert checkpoint is not None
    ends(story.launch_again("--resume", str(checkpoint)), 0, limit_s=100)
    after = story.sums(left[0])
    assert len(before) + len(after) == ITERATIONS, "no step is lost or repeated"
    story.check([left[0]], sums=before + after)
    story.assert_nothing_left()


def test_a_job_without_servers_begins_again_from_its_newest_checkpoint(tmp_path: Path) -> None:
    keys = f"checkpoint_every: {SAVED_EVERY}\n"
    story = Story(tmp_path, ITERATIONS, ALL_SERVERS_LOST, keys=keys, elastic=", restarts: 1")
    output = ends(story.launch(), 0, limit_s=100)
    first, second = sorted((tmp_path / "runs").glob("t-*"), key=lambda path: path.stat().st_mtime)
    assert_nothing_left(run_id_in(first.name))
    story.assert_nothing_left()
    folder, summary = story.record, story.summary()
    assert folder.path == second
    checkpoint = first / "checkpoints" / "last.pt"
    assert json.loads(RunFolder(first).summary_json.read_text())["reason"].endswith("; no server is left")
    assert f"the job starts again in 1 s with 4 workers, from {checkpoint}: 1 of 1 (elastic.restarts)" in output
    assert summary["restart"] == f"restart 1 of the job, from {checkpoint}"
    saved = LOST_IN // SAVED_EVERY * SAVED_EVERY
    before = [json.loads(line) for line in (tmp_path / "before.jsonl").read_text().splitlines()][:saved]
    after = story.sums(0)
    assert len(after) == ITERATIONS - saved
    story.check([0], sums=before + after)
