"""The scheduler of a job over BytePS is killed while it trains, and the arbitrator ends with it. Nobody notices.

The result is that of one process, and what comes later finds a scheduler and a coordinator that know all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import KILL_SCHEDULER, KILL_SERVER, WIDE, Story, trained

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 260
# A worker and a server are lost while no coordinator is there. Iterations are long until both are back. When training
# is about to end, the scheduler is killed once more.
FAULT = f"""\
back = False
def fault(rank, iteration):
    global back
    if rank == 1 and iteration in (20, {ITERATIONS - 1}):
        kill_scheduler()
    if rank == 1 and iteration == 20:
        kill_server(1, iteration)
    if rank == 3 and iteration == 20 and os.environ["DYNAMIX_STARTS"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if 20 < iteration < {ITERATIONS - 10} and not back:
        time.sleep(0.1)
        told = open("runs/latest/workers/worker-0.jsonl").read()
        back = '"workers_entered"' in told and '"servers_entered"' in told
"""


def test_a_worker_and_a_server_come_back_by_the_scheduler_in_its_place_and_the_job_ends_in_order(
    tmp_path: Path,
) -> None:
    """Such a job has no late sums."""
    fault, keys = KILL_SERVER + KILL_SCHEDULER + FAULT, "overlap: next_forward\n"
    story = Story(tmp_path, ITERATIONS, fault, WIDE, elastic=", restarts: 1", keys=keys)
    summary = trained(story)
    story.check([0, 1, 2, 3])
    present = [one["present"] for one in story.sums(0)]
    assert present[20] == [0, 1, 2] and present[-1] == [0, 1, 2, 3] and len(present) == ITERATIONS
    assert summary["reason"].startswith("all workers finished")
    told = "a job whose workers come and go waits for all sums in run.backward()"
    assert any(told in one for one in summary["degraded"])
    again = "the scheduler was killed by SIGKILL, started again "
    assert sum(loss.startswith(again) for loss in summary["losses"]) == 2
    arrived = [one.partition(" from iteration ")[0] for one in summary["arrivals"]]
    assert sorted(arrived) == ["2 of 2 servers", "4 of 4 workers"]
