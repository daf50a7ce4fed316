"""Losses over the rows of all workers, `run.gather`, where a worker is lost. Others leave and enter with such losses in
test_workers_later.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import DOUBLE, Story

pytestmark = pytest.mark.timeout(300)

LOST_IN = 30
# The loss over all rows is the mean over all samples, so that one process comes to the same weights.
GATHERED = """
def gathered():
    global loss
    loss = torch.nn.functional.cross_entropy(run.gather(model(inputs)), run.gather(targets))
"""
FAULT = f"""{GATHERED}
def fault(rank, iteration):
    if AFTER_THEM:
        gathered()
    if rank == 2 and iteration == {LOST_IN}:
        all_have_met()
        os.kill(os.getpid(), signal.SIGKILL)
    if not AFTER_THEM:
        gathered()
"""


@pytest.mark.parametrize(
    ("comm", "after"), [("byteps", True), ("gloo", False)], ids=["byteps, after the rows", "gloo, before them"]
)
def test_who_is_lost_with_rows_ends_the_job(tmp_path: Path, comm: str, after: bool) -> None:
    story = Story(tmp_path, 2 * LOST_IN, FAULT.replace("AFTER_THEM", f"{after}"), DOUBLE, comm=comm)
    job = story.launch()
    output, _ = job.communicate(timeout=100)
    assert job.returncode, output
    for rank in (0, 1, 3):
        named = f"worker 2 is lost in iteration {LOST_IN}"
        assert any(f"worker-{rank}" in line and named in line for line in output.splitlines()), output
        assert len(story.sums(rank)) == LOST_IN, "no step was made with the loss"
    story.assert_nothing_left()
