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
    if rank == 1 and iteration == 20:
        kill_server(1, iteration)
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
def test_a_lost_server_comes_back_and_sums_what_the_other_one_had(wire: str, tmp_path: Path) -> None:
    story = Story(tmp_path, 280, KILL_SERVER + FAULT, WIDE, elastic=", restarts: 3", wire=wire)
    summary = trained(story)
    assert (tmp_path / "entered").exists(), "server 1 has not entered"
    story.check([0, 1, 2, 3])
    assert [one["present"] for one in story.sums(0)] == [[0, 1, 2, 3]] * 280, "no worker is lost, and no sum"
    assert summary["reason"].startswith("all workers finished")
    assert [loss.split(",")[0] for loss in summary["losses"]] == [
        "1 of 2 servers: server 1 lost",
        "1 of 2 servers: server 0 lost",
    ]
    assert summary["arrivals"][0].startswith("2 of 2 servers from iteration ")
