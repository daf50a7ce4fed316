"""No wrong sum, whoever stops or reads slowly. Where a server reuses a buffer too early the same test finds wrong sums.

Two workers make 24,000 push_pulls each of changing values over TCP, without compute in between; a script that uses
BytePS itself makes 9,600. From time to time worker 1 pushes large tensors and stops (SIGSTOP) before the answers
arrive. The server still holds part of them when worker 0 continues and pushes its next values. A server that reuses a
buffer at once then sends values of the next round to worker 1.

`benchmarks.studies.faults.data_plane_race` stops workers and servers at random on every path; here it runs small.
"""

from __future__ import annotations

from textwrap import dedent

import pytest

from benchmarks.studies.faults import data_plane_race
from benchmarks.studies.faults.data_plane_race import PATHS, race
from benchmarks.testbed import permitted
from tests.forked_cluster import ForkedBedCluster, ForkedCluster

pytestmark = pytest.mark.timeout(300)

SUMS = 800  # on each path
TCP = {"DYNAMIX_SHARED_MEMORY": "0"}
COMM = """
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    comm._exchange.limit_in_flight(1 << 40)  # sockets are to be full, and the marker overtakes nothing
    rank, declare, push_pull, shutdown = comm.rank, comm.declare, comm.push_pull, comm.shutdown

    def wait(handle):
        assert comm.wait(handle, 100.0)
"""
PLAIN = """
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init(lazy=False)
    rank, declare, wait, shutdown = bps.rank(), ops.declare, ops.synchronize, bps.shutdown

    def push_pull(name, buffer):
        return ops.push_pull_async_inplace(buffer, average=False, name=name)
"""
WAYS = {"comm": (COMM, 600), "plain script": (PLAIN, 240)}  # and rounds
SCRIPT = """
    import json, os, signal, time
    import torch

    ROUNDS, SMALL, LARGE = int(os.environ["ROUNDS"]), 40, 4
    SLOW_EVERY = 120  # rounds between two slow readings
    torch.set_num_threads(1)
    small = [f"small-{i}" for i in range(SMALL)]
    large = [f"large-{i}" for i in range(LARGE)]
    for name in [*small, *large, "marker"]:
        declare(name)
    sizes = [1 + 37 * i * i for i in range(SMALL)]
    checked = wrong = 0

    def push(names, lengths, turn):
        buffers = [torch.full((n,), float((turn + i) % 1000 * (rank + 1))) for i, n in enumerate(lengths)]
        return [(push_pull(name, b), b) for name, b in zip(names, buffers)]

    def check(pushed, turn):
        global checked, wrong
        for i, (handle, buffer) in enumerate(pushed):
            wait(handle)
            checked += 1
            wrong += int((buffer != (turn + i) % 1000 * 3.0).any())

    def stopped(pid):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"

    def slow_reading(turn, patience_s):
        lengths = [4_000_000] * LARGE  # 64 MB: more than sockets hold
        if rank == 1:
            pushed = push(large, lengths, turn)
            check(push(["marker"], [1], turn), turn)  # behind the others: the server has them all
            with open("pid.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename("pid.new", f"pid-{turn}")
            os.kill(os.getpid(), signal.SIGSTOP)
            check(pushed, turn)
            check(push(large, lengths, turn + 1), turn + 1)
        else:
            check(push(["marker"], [1], turn), turn)
            while not os.path.exists(f"pid-{turn}"):
                time.sleep(0.005)
            pid = int(open(f"pid-{turn}").read())
            while not stopped(pid):
                time.sleep(0.005)
            check(push(large, lengths, turn), turn)
            pushed = push(large, lengths, turn + 1)
            time.sleep(patience_s)  # for the server to take in the new values
            os.kill(pid, signal.SIGCONT)
            check(pushed, turn + 1)

    check(push(large, [4_000_000] * LARGE, 0), 0)  # the first push of a key waits for all workers
    check(push(["marker"], [1], 0), 0)
    for turn in range(ROUNDS):
        if turn % SLOW_EVERY == 0:
            slow_reading(turn, 0.2 * (1 + turn // SLOW_EVERY))
        check(push(small, sizes, turn), turn)
    shutdown()
    print(json.dumps([checked, wrong]))
"""


def race_with_slow_reader(way: str, **env: str) -> list[tuple[int, int]]:
    """Sums that each worker has checked, and how many of them were wrong."""
    beginning, rounds = WAYS[way]
    with ForkedCluster(dedent(beginning) + dedent(SCRIPT), env={**TCP, "ROUNDS": str(rounds), **env}) as cluster:
        return [(checked, wrong) for checked, wrong in cluster.results(280.0)]


@pytest.mark.parametrize("way", WAYS)
def test_no_sum_is_wrong(way: str) -> None:
    (checked_0, wrong_0), (checked_1, wrong_1) = race_with_slow_reader(way)
    assert checked_0 == checked_1 and checked_0 >= 40 * WAYS[way][1]
    assert (wrong_0, wrong_1) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_without_parity_sums_are_wrong(way: str) -> None:
    _, (_, wrong_of_the_slow_one) = race_with_slow_reader(way, BYTEPS_SERVER_PARITY="0")
    assert wrong_of_the_slow_one > 0


@pytest.mark.parametrize(
    ("path", "wire"),
    [*((path, "float32") for path in PATHS), ("tcp", "int8"), ("mixed", "bf16"), ("ring", "int8")],
)
def test_no_wrong_sum_while_workers_and_servers_stop_at_random(
    path: str, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane_race, "Cluster", ForkedCluster)
    monkeypatch.setattr(data_plane_race, "BedCluster", ForkedBedCluster)
    if path == "mixed" and (reason := permitted()):
        pytest.skip(f"test bed: {reason}")
    found = race(path, sums=SUMS, seed=0, wire=wire)
    assert found.checked == 4 * SUMS and found.stops
    assert not found.wrong, found.examples
