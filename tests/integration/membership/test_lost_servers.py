"""Servers of a job over BytePS are killed while it trains, and come back. The result is that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import KILL_SERVER, WIDE, Story, trained

pytestmark = pytest.mark.timeout(240)

# Until server 1 is there again, iterations are long. Then it sums what server 0 had.
FAULT = """\
entered = None
def fault(rank, iteration):
    global entered
    if rank == 3 and iteration == 20 and os.environ["DYNAMIX_STARTS"] == "0":
        kill_server(1, iteration)
        os.kill(os.getpid(), signal.SIGKILL)
    if 20 < iteration < 250 and entered is None:
        time.sleep(0.1)
        if '"servers_entered"' in open("runs/latest/workers/worker-0.jsonl").read():
            entered = iteration
            if rank == 1:
                open("entered", "w").write(str(iteration))
    if rank == 1 and entered is not None and iteration == entered + 10:
        kill_server(0, iteration)
"""


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_server_that_is_lost_with_a_worker_comes_back_and_sums_what_the_other_one_had(
    wire: str, tmp_path: Path
) -> None:
    story = Story(tmp_path, 280, KILL_SERVER + FAULT, WIDE, elastic=", restarts: 3", wire=wire)
    summary = trained(story)
    assert (tmp_path / "entered").exists(), "server 1 has not entered"
    story.check([0, 1, 2])
    present = [one["present"] for one in story.sums(0)]
    assert present[:21] == [[0, 1, 2, 3]] * 20 + [[0, 1, 2]] and len(present) == 280
    assert all(set(one) >= {0, 1, 2} for one in present), "no other worker is lost, and no sum"
    lost = [loss.split(",")[0] for loss in summary["losses"]]
    assert sorted(lost[:2]) == ["1 of 2 servers: server 1 lost", "3 of 4 workers from iteration 20: worker 3 lost"]
    assert "1 of 2 servers: server 0 lost" in lost[2:]
    assert any(one.startswith("2 of 2 servers from iteration ") for one in summary["arrivals"])
