"""Workers that choose their own sizes are killed, leave and enter: the result is that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import DOUBLE, Story
from tests.integration.membership.test_workers_enter import join_when_left
from tests.launching import ends

pytestmark = pytest.mark.timeout(240)

# Worker 1 is killed and started again, and worker 2 leaves and is started again. They train until all three have chosen
# sizes together for a while after that.
STORY = """\
first = os.environ["DYNAMIX_STARTS"] == "0"
whole = 0
def fault(rank, iteration):
    if first and (rank, iteration) in ((1, 40), (2, 80)):
        while not run.training.session.may_leave:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL if rank == 1 else signal.SIGUSR1)
def stepped(present):
    global whole
    chosen = len(present) == 3 and not run.training.plans.switch._entered
    whole = whole + 1 if chosen and run.iteration > 82 else 0
    time.sleep(0.02)
def enough():
    return whole >= 30
"""


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_sizes_are_chosen_by_whoever_is_there(tmp_path: Path, comm: str) -> None:
    keys = "policy: {name: stigmergy}\nemulation: hook\n"
    story = Story(
        tmp_path, None, STORY, DOUBLE, min_workers=1, elastic=", restarts: 2", keys=keys, workers=3, comm=comm
    )
    story.write()
    file = tmp_path / "cluster.yaml"
    slow = "{batch: 6}, {batch: 6, speed: 0.5}, {batch: 6}"
    text = file.read_text().replace("{batch: 6}, {batch: 6}, {batch: 6}", slow)
    file.write_text(text.replace("window: 5", "window: 6"))
    job = story.launch_again()
    join_when_left(tmp_path, job, "worker 2 has entered; ")
    ends(job, 0, limit_s=120)
    story.check([0, 1, 2], rtol=1e-9)
    story.check_epochs(0)
    sums = story.sums(0)
    for rank in (1, 2):
        own = story.sums(rank)
        assert own == sums[-len(own) :], "it sees the same sums"
    whole = [tuple(one["sizes"]) for one in sums if one["present"] == [0, 1, 2]]
    without = [tuple(one["sizes"]) for one in sums if len(one["present"]) == 2]
    assert len(set(whole)) > 3 and len(set(without)) > 1, "sizes change"
    summary = story.summary()
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 3
    assert (len(summary["losses"]), len(summary["departures"]), len(summary["arrivals"])) == (1, 1, 2)
    assert not story.planned(), "the arbitrator decides on members alone"
    story.assert_nothing_left()
