"""The scheduler of a job over BytePS is killed while it trains, and the arbitrator ends with it. Nobody notices.

The result is that of one process, and what comes later finds a scheduler and a coordinator that know all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import KILL_SCHEDULER, KILL_SERVER, SAMPLES, WIDE, Story, trained

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 12 * SAMPLES // 24


@pytest.mark.parametrize(("wire", "overlap"), [("float32", "backward"), ("int8", "next_forward")])
def test_training_goes_on_and_ends_in_order(wire: str, overlap: str, tmp_path: Path) -> None:
    """It is killed in mid-training, and once more when training is about to end. Such a job has no late sums."""
    fault = f"""\
def fault(rank, iteration):
    if rank == 1 and iteration in (30, {ITERATIONS - 1}):
        kill_scheduler()
"""
    story = Story(tmp_path, ITERATIONS, KILL_SCHEDULER + fault, WIDE, wire=wire, keys=f"overlap: {overlap}\n")
    summary = trained(story)
    story.check([0, 1, 2, 3])
    sums = story.sums(0)
    assert [one["present"] for one in sums] == [[0, 1, 2, 3]] * ITERATIONS
    assert summary["reason"].startswith("all workers finished")
    told = "a job whose workers come and go waits for all sums in run.backward()"
    assert [told in one for one in summary["degraded"]].count(True) == (overlap != "backward")
    assert len(summary["losses"]) == 2
    assert all(loss.startswith("the scheduler was killed by SIGKILL, started again ") for loss in summary["losses"])


def test_a_worker_is_lost_and_comes_back_by_the_scheduler_in_its_place(tmp_path: Path) -> None:
    """The worker is lost while no coordinator is there. The others wait for it, and go on without the worker."""
    fault = """\
entered = None
def fault(rank, iteration):
    global entered
    if rank == 1 and iteration == 20:
        kill_scheduler()
    if rank == 3 and iteration == 20 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if 20 < iteration < 250 and entered is None:
        time.sleep(0.1)
        if '"workers_entered"' in open("runs/latest/workers/worker-0.jsonl").read():
            entered = iteration
"""
    story = Story(tmp_path, 260, KILL_SCHEDULER + fault, elastic=", restarts: 1")
    summary = trained(story)
    story.check([0, 1, 2, 3])
    present = [one["present"] for one in story.sums(0)]
    assert [0, 1, 2] in present and present[-1] == [0, 1, 2, 3]
    assert summary["arrivals"][0].startswith("4 of 4 workers from iteration ")


def test_a_server_is_lost_and_comes_back_by_the_scheduler_in_its_place(tmp_path: Path) -> None:
    fault = """\
entered = None
def fault(rank, iteration):
    global entered
    if rank == 1 and iteration == 20:
        kill_scheduler()
        kill_server(1, iteration)
    if 20 < iteration < 250 and entered is None:
        time.sleep(0.1)
        if '"servers_entered"' in open("runs/latest/workers/worker-0.jsonl").read():
            entered = iteration
            if rank == 1:
                open("entered", "w").close()
"""
    story = Story(tmp_path, 260, KILL_SERVER + KILL_SCHEDULER + fault, elastic=", restarts: 1")
    summary = trained(story)
    assert (tmp_path / "entered").exists(), "server 1 has not entered"
    story.check([0, 1, 2, 3])
    assert [one["present"] for one in story.sums(0)] == [[0, 1, 2, 3]] * 260
    assert summary["arrivals"][0].startswith("2 of 2 servers from iteration ")
