"""Servers of a job over BytePS are killed while it trains, and come back. The result is that of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import KILL_SERVER, SAMPLES, WIDE, Story, trained

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 6 * SAMPLES // 24


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_the_last_server_sums_what_two_lost_ones_had(wire: str, tmp_path: Path) -> None:
    fault = """\
def fault(rank, iteration):
    if rank == 1 and iteration in (30, 60):
        kill_server({30: 1, 60: 0}[iteration], iteration)
"""
    story = Story(tmp_path, ITERATIONS, KILL_SERVER + fault, WIDE, servers=3, wire=wire)
    summary = trained(story)
    story.check([0, 1, 2, 3])
    sums = story.sums(0)
    assert [one["present"] for one in sums] == [[0, 1, 2, 3]] * ITERATIONS, "no worker is lost, and no sum"
    order = [number for one in sums for number in one["numbers"]]
    assert sorted(order[:SAMPLES]) == list(range(SAMPLES)), "every sample once"
    why, *ends = summary["reason"].split("; ")  # both ends may be seen in one look
    assert (why, sorted(ends)) == ("all workers finished", [f"server-{n} was killed by SIGKILL" for n in (0, 1)])
    left = [loss.partition(":")[0] for loss in summary["losses"]]
    assert left in (["2 of 3 servers", "1 of 3 servers"], ["1 of 3 servers"]), "both losses may be seen in one look"


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_lost_server_comes_back_and_sums_what_the_other_one_had(wire: str, tmp_path: Path) -> None:
    """Until it is there, iterations are long."""
    fault = """\
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
    story = Story(tmp_path, 280, KILL_SERVER + fault, WIDE, elastic=", restarts: 3", wire=wire)
    summary = trained(story)
    assert (tmp_path / "entered").exists(), "server 1 has not entered"
    story.check([0, 1, 2, 3])
    assert [one["present"] for one in story.sums(0)] == [[0, 1, 2, 3]] * 280
    assert summary["reason"].startswith("all workers finished")
    assert [loss.split(",")[0] for loss in summary["losses"]] == [
        "1 of 2 servers: server 1 lost",
        "1 of 2 servers: server 0 lost",
    ]
    assert summary["arrivals"][0].startswith("2 of 2 servers from iteration ")


def test_a_worker_and_a_server_are_lost_at_once(tmp_path: Path) -> None:
    fault = """\
def fault(rank, iteration):
    if rank == 3 and iteration == 40:
        kill_server(2, iteration)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    story = Story(tmp_path, ITERATIONS, KILL_SERVER + fault, servers=3)
    summary = trained(story)
    story.check([0, 1, 2])
    present = [one["present"] for one in story.sums(0)]
    assert present[:42] == [[0, 1, 2, 3]] * 40 + [[0, 1, 2]] * 2
    assert summary["reason"].startswith("3 of 4 workers finished: ")
    assert {loss.split(",")[0] for loss in summary["losses"]} == {
        "3 of 4 workers from iteration 40: worker 3 lost",
        "2 of 3 servers: server 2 lost",
    }


def test_a_server_comes_back_while_a_worker_that_it_has_not_met_is_lost(tmp_path: Path) -> None:
    """The worker is stopped: the server has a connection to it, but no answer, when it is killed."""
    fault = """\
import psutil
entered = 0
def goes_to(ports):  # whether a server has a connection there that it has opened
    for process in psutil.process_iter():
        try:
            of = process.environ()
            if of.get("DYNAMIX_ROLE_NAME") == "server-1" and of.get("DYNAMIX_RUN_ID") == os.environ["DYNAMIX_RUN_ID"]:
                return any(one.raddr and one.raddr.port in ports for one in process.net_connections("tcp"))
        except psutil.Error:
            continue
    return False
def fault(rank, iteration):
    global entered
    if rank == 2 and iteration == 20:
        listens = [c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        open("stopped.part", "w").write(json.dumps([os.getpid(), listens]))
        os.rename("stopped.part", "stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1 and iteration == 20:
        while not os.path.exists("stopped"):
            time.sleep(0.01)
        kill_server(1, iteration)
    if rank == 0 and 20 < iteration < 150 and os.path.exists("stopped"):
        pid, ports = json.load(open("stopped"))
        if goes_to(ports):
            os.kill(pid, signal.SIGKILL)
            os.rename("stopped", "killed")
    if 20 < iteration < 150 and not entered:
        time.sleep(0.1)
        if '"servers_entered"' in open("runs/latest/workers/worker-0.jsonl").read():
            entered = iteration
"""
    keys = "timeouts: {lease_s: 2.0, rpc_s: 1.0}\n"
    story = Story(tmp_path, 160, KILL_SERVER + fault, elastic=", restarts: 1", keys=keys)
    summary = trained(story)
    assert (tmp_path / "killed").exists(), "the new server has not met it"
    story.check([0, 1, 3])
    lost = [loss.split(",")[0].partition(": ")[2] for loss in summary["losses"]]
    assert lost == ["worker 2 lost", "server 1 lost"], "the new server stays"
    assert any(one.startswith("2 of 2 servers from iteration ") for one in summary["arrivals"])
