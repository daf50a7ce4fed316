"""A waiting BytePS uses neither GIL nor CPU, and its waits have a time limit."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.forked_cluster import ForkedCluster

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 100.0
IDLE_S = 3.0

# Worker 1 joins the sum only when a Python thread of worker 0 has counted while worker 0 was waiting.
GIL = """
    import json, os, threading, time
    import torch
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init(lazy=False)
    ops.declare("x")
    ops.synchronize(ops.push_pull_async_inplace(torch.ones(3), average=False, name="x"))
    counted = 0
    if bps.rank() == 0:
        waiting = threading.Event()

        def count():
            global counted
            waiting.wait()
            for counted in range(1, 100_001):
                pass
            open("counted", "w").close()

        thread = threading.Thread(target=count)
        thread.start()
        buffer = torch.ones(1000)
        handle = ops.push_pull_async_inplace(buffer, average=False, name="x2")
        waiting.set()
        {wait}
        thread.join()
    else:
        while not os.path.exists("counted"):
            time.sleep(0.01)
        buffer = torch.ones(1000)
        ops.synchronize(ops.push_pull_async_inplace(buffer, average=False, name="x2"))
    bps.shutdown()
    print(json.dumps([counted, float(buffer.sum())]))
"""


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("ops.synchronize(handle)", id="synchronize"),
        pytest.param(
            "from byteps.torch import c_lib\n        assert c_lib.byteps_torch_wait(handle, 90.0)", id="with-a-limit"
        ),
    ],
)
def test_python_threads_run_while_a_worker_waits(wait: str) -> None:
    with ForkedCluster(GIL.replace("{wait}", wait)) as cluster:
        assert cluster.results(LIMIT_S) == [[100_000, 2000.0], [0, 2000.0]]


def test_wait_gives_up_and_can_be_taken_up_again() -> None:
    script = """
        import json, os, time, torch
        from dynamix_ps.comm import open_comm

        comm = open_comm("byteps")
        comm.init()
        comm.declare("x")
        gave_up = 0
        if comm.rank == 1:
            while not os.path.exists("gave-up"):
                time.sleep(0.01)
        buffer = torch.full((1000,), 2.0)
        handle = comm.push_pull("x", buffer)
        while not comm.wait(handle, 0.05 if comm.rank == 0 else 60.0):
            gave_up += 1
            open("gave-up", "w").close()
        comm.shutdown()
        print(json.dumps([gave_up > 0, float(buffer.sum())]))
    """
    with ForkedCluster(script) as cluster:
        assert cluster.results(LIMIT_S) == [[True, 4000.0], [False, 4000.0]]


def test_idle_roles_use_no_cpu() -> None:
    """CPU time, which does not grow when other processes keep the machine busy."""
    script = """
        import time, torch
        import byteps.torch as bps
        from byteps.torch import ops

        bps.init()
        handle = ops.push_pull_async_inplace(torch.ones(1000), name="x")
        while not ops.poll(handle):
            time.sleep(0.01)
        print("idle", flush=True)
        time.sleep(1000)
    """
    with ForkedCluster(script) as cluster:
        for rank in range(2):
            cluster.wait_for(f"worker-{rank}", "idle", LIMIT_S)
        roles = {role: psutil.Process(cluster.pid(role)) for role in ("scheduler", "server-0", "worker-0", "worker-1")}
        before = {role: process.cpu_times() for role, process in roles.items()}
        began_s = time.monotonic()
        time.sleep(IDLE_S)
        passed_s = time.monotonic() - began_s
        used = {
            role: (process.cpu_times().user - before[role].user + process.cpu_times().system - before[role].system)
            / passed_s
            for role, process in roles.items()
        }
    assert used["scheduler"] < 0.02 and used["server-0"] < 0.02, used
    assert used["worker-0"] < 0.05 and used["worker-1"] < 0.05, used
