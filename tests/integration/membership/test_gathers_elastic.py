"""Losses over the rows of all workers, `run.gather`, while workers leave, come back and are lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import Story
from tests.integration.membership.test_workers_enter import join_when_left, story_of
from tests.launching import ends

pytestmark = pytest.mark.timeout(300)

# The loss over all rows is the mean over all samples, so that one process comes to the same weights.
GATHERED = """
alone = fault
def fault(rank, iteration):
    global loss
    if (rank, iteration) == AT_FIRST:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = torch.nn.functional.cross_entropy(run.gather(model(inputs)), run.gather(targets))
    alone(rank, iteration)
"""


def gathering(story: Story, at_first: tuple[int, int] | None = None) -> Story:
    """`at_first`: (rank, iteration) in which a worker is killed before it gathers."""
    return replace(story, fault=story.fault + GATHERED.replace("AT_FIRST", repr(at_first)))


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_one_leaves_and_comes_back(tmp_path: Path, comm: str) -> None:
    story = gathering(story_of(tmp_path, {2: 30}, "SIGUSR1", comm=comm))
    job = story.launch()
    join_when_left(tmp_path, job, "worker 2 has entered; 4 workers go on from iteration ")
    ends(job, 0, limit_s=100)
    story.check([1, 0, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    summary = story.summary()
    assert summary["reason"] == "all workers finished"
    assert summary["losses"] == [] and len(summary["departures"]) == len(summary["arrivals"]) == 1
    story.assert_nothing_left()


@pytest.mark.parametrize(
    ("comm", "at_first"), [("byteps", None), ("gloo", (2, 30))], ids=["byteps, after the rows", "gloo, before them"]
)
def test_who_is_lost_with_rows_ends_the_job(tmp_path: Path, comm: str, at_first: tuple[int, int] | None) -> None:
    killed = {2: 30} if at_first is None else {2: 10**6}
    story = gathering(replace(story_of(tmp_path, killed, "SIGKILL", comm=comm), elastic=""), at_first)
    job = story.launch()
    output, _ = job.communicate(timeout=100)
    assert job.returncode, output
    for rank in (0, 1, 3):
        told = f"worker-{rank}"
        assert any(told in line and "worker 2 is lost in iteration 30" in line for line in output.splitlines()), output
        assert len(story.sums(rank)) == 30, "no step was made with the loss"
    story.assert_nothing_left()
