"""Servers of a job over BytePS are killed while it trains, and come back. The result is that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import WIDE, Story, trained

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 280
# Until all are there again, iterations are long. Then server 1 sums what server 0 had. WITH_OTHERS, the scheduler is
# killed with server 1, and the arbitrator ends with it; so worker 3 is lost while no coordinator is there. Worker 2 is
# lost with server 0, and meets server 1. When training is about to end, the scheduler is killed once more.
FAULT = f"""\
entered = None
def fault(rank, iteration):
    global entered
    if rank == 1 and iteration in (20, {ITERATIONS - 1}) and WITH_OTHERS:
        kill_scheduler()
    if rank == 1 and iteration == 20:
        kill_server(1, iteration)
    if rank == 3 and iteration == 20 and first and WITH_OTHERS:
        os.kill(os.getpid(), signal.SIGKILL)
    if 20 < iteration < {ITERATIONS - 30} and entered is None:
        time.sleep(0.1)
        told = open("runs/latest/workers/worker-0.jsonl").read()
        if '"servers_entered"' in told and ('"workers_entered"' in told or not WITH_OTHERS):
            entered = iteration
            if rank == 1:
                open("entered", "w").write(str(iteration))
    if rank == 1 and entered is not None and iteration == entered + 10:
        kill_server(0, iteration)
        for worker in processes("DYNAMIX_ROLE_NAME=worker-2"):
            if WITH_OTHERS:
                os.kill(worker, signal.SIGKILL)
def stepped(present):
    time.sleep(0.1 * (len(present) < 4))
"""


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_lost_server_comes_back_and_sums_what_the_other_one_had(wire: str, tmp_path: Path) -> None:
    """With float32, the scheduler and a worker are lost, too. Nobody notices the scheduler, and all come back by it."""
    with_others = wire == "float32"
    fault, keys = FAULT.replace("WITH_OTHERS", f"{with_others}"), "overlap: next_forward\n"
    story = Story(tmp_path, ITERATIONS, fault, WIDE, elastic=", restarts: 3", wire=wire, keys=keys)
    summary = trained(story)
    assert (tmp_path / "entered").exists(), "server 1 has not entered"
    story.check([0, 1, 2, 3])
    present, everybody = [one["present"] for one in story.sums(0)], [0, 1, 2, 3]
    assert len(present) == ITERATIONS and present[:20] == [everybody] * 20 and present[-1] == everybody
    assert present[20] == ([0, 1, 2] if with_others else everybody)
    assert with_others or present == [everybody] * ITERATIONS, "no worker is lost, and no sum"
    assert summary["reason"].startswith("all workers finished")
    told = "a job whose workers come and go waits for all sums in run.backward()"
    assert any(told in one for one in summary["degraded"])
    lost = [loss.split(",")[0] for loss in summary["losses"]]
    again = "the scheduler was killed by SIGKILL"
    assert lost.count(again) == 2 * with_others
    servers = [loss.partition(": ")[2] for loss in lost if " servers: " in loss]
    if not with_others or len(servers) > 1:  # else the arbitrator has ended between a record and its word of it
        assert servers.pop(0) == "server 1 lost"
    assert servers == ["server 0 lost"]
    arrived = [one.partition(" from iteration ")[0] for one in summary["arrivals"]]
    assert arrived.count("4 of 4 workers") == 2 * with_others and "2 of 2 servers" in arrived
