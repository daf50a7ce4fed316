"""BytePS's MXNet plugin in our build, as real processes."""

from __future__ import annotations

import pytest

from benchmarks.testbed.byteps_cluster import Cluster
from tests.integration.training.small_training import NEEDS_MXNET

pytestmark = [pytest.mark.timeout(120), NEEDS_MXNET]

LIMIT_S = 100.0

SUMS = """
    import json
    import numpy as np
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps", "mxnet")
    comm.init()
    import mxnet as mx
    wrong, cases = 0, 0
    for dtype in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64"):
        for size in (1, 7, 1003, 2_500_001):  # the last one takes several partitions
            name = f"{dtype}-{size}"
            comm.declare(name)
            for turn in range(3):
                values = np.arange(size) % 5 + turn
                buffer = mx.nd.array(values * (comm.rank + 1), dtype=dtype)
                assert comm.wait(comm.push_pull(name, buffer), 60.0)
                wrong += int((buffer.asnumpy() != (values * sum(range(1, comm.size + 1))).astype(dtype)).sum())
                cases += 1
    comm.declare("total")
    total = comm.total("total", np.array([1 << 40, comm.rank], dtype=np.int64)).tolist()
    comm.shutdown()
    print(json.dumps({"wrong": wrong, "cases": cases, "total": total}))
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_sums(workers: int) -> None:
    with Cluster(SUMS, workers) as cluster:
        results = cluster.results(LIMIT_S)
    total = [workers << 40, sum(range(workers))]
    assert results == [{"wrong": 0, "cases": 84, "total": total}] * workers


def test_a_sum_begins_after_what_still_computes() -> None:
    script = """
        import json
        from dynamix_ps.comm import open_comm

        comm = open_comm("byteps", "mxnet")
        comm.init()
        import mxnet as mx
        comm.declare("x")
        wrong = 0
        for turn in range(30):
            slow = mx.nd.ones((400, 400))
            for _ in range(5):
                slow = mx.nd.dot(slow, slow) / 400
            assert comm.wait(comm.push_pull("x", slow), 60.0)
            wrong += int((slow * 2 != 2 * comm.size).sum().asscalar())
        comm.shutdown()
        print(json.dumps(wrong))
    """
    with Cluster(script) as cluster:
        assert cluster.results(LIMIT_S) == [0, 0]


def test_wait_gives_up_and_can_be_taken_up_again() -> None:
    script = """
        import json, os, time
        from dynamix_ps.comm import open_comm

        comm = open_comm("byteps", "mxnet")
        comm.init()
        import mxnet as mx
        comm.declare("x")
        buffer = mx.nd.full(1000, 2.0)
        assert comm.wait(comm.push_pull("x", buffer), 60.0)  # the first one of a name waits for all workers by itself
        gave_up = 0
        if comm.rank == 1:
            while not os.path.exists("gave-up"):
                time.sleep(0.01)
        handle = comm.push_pull("x", buffer)
        while not comm.wait(handle, 0.05 if comm.rank == 0 else 60.0):
            gave_up += 1
            open("gave-up", "w").close()
        comm.shutdown()
        print(json.dumps([gave_up > 0, float(buffer.sum().asscalar())]))
    """
    with Cluster(script) as cluster:
        assert cluster.results(LIMIT_S) == [[True, 8000.0], [False, 8000.0]]


def test_what_cannot_be_summed_is_refused() -> None:
    script = """
        import json
        from dynamix_ps.comm import open_comm

        comm = open_comm("byteps", "mxnet")
        comm.init()
        import mxnet as mx
        comm.declare("x")
        said = []
        for call in (
            lambda: comm.push_pull("x", mx.nd.ones(3).tostype("row_sparse")),
            lambda: comm.wait(12345, 1.0),
        ):
            try:
                call()
            except ValueError as error:
                said.append(str(error))
        comm.shutdown()
        print(json.dumps(said))
    """
    with Cluster(script, workers=1) as cluster:
        (said,) = cluster.results(LIMIT_S)
    assert said[0].startswith("x: cannot sum row_sparse float32 on cpu(0); this build takes")
    assert said[1] == "there is no sum with handle 12345"


def test_plain_script() -> None:
    """It knows only byteps.mxnet, and keeps no reference to some of the tensors that it sums."""
    script = """
        import json
        import byteps.mxnet as bps
        import mxnet as mx

        bps.init()
        sizes = [1, 1003, 2_500_001]  # the last one takes several partitions
        for size in sizes:
            bps.byteps_declare_tensor(f"kept-{size}")
            bps.byteps_declare_tensor(f"dropped-{size}")
        wrong = 0
        for turn in range(20):
            for size in sizes:
                kept = mx.nd.full(size, turn * (bps.rank() + 1))
                bps.byteps_push_pull(kept, name=f"kept-{size}", is_average=False)
                bps.byteps_push_pull(mx.nd.ones(size), name=f"dropped-{size}", is_average=False)
                wrong += int((kept != turn * 3).sum().asscalar())
        mx.nd.waitall()
        bps.shutdown()
        print(json.dumps(wrong))
    """
    with Cluster(script) as cluster:
        assert cluster.results(LIMIT_S) == [0, 0]
