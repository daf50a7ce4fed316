"""Sums are right in any buffer, wherever it is and whatever the name was used with before."""

from __future__ import annotations

import pytest

from benchmarks.studies.faults.data_plane_race import PATHS
from tests.forked_cluster import ForkedCluster

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
    import json
    import torch
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    LENGTH = 300_007
    names = ["a", "b", "c", "d", "e", "f", "g", "h"]
    for name in names:
        comm.declare(name)
    pattern = torch.arange(LENGTH).remainder_(1009).float()
    wrong, turn = [], 0

    def begin(name, buffer):
        global turn
        turn += 1
        torch.add(pattern[: len(buffer)], turn * (comm.rank + 1), out=buffer)
        return comm.push_pull(name, buffer), buffer, turn

    def end(handle, buffer, turn, what):
        assert comm.wait(handle, 30.0), what
        if not torch.equal(buffer, pattern[: len(buffer)] * 2 + turn * 3):
            wrong.append(f"{what}, turn {turn}")

    def check(name, buffer, what):
        end(*begin(name, buffer), what)

    memory = comm.allocate(LENGTH, "float32")
    shared, also_shared = torch.from_numpy(memory), torch.from_numpy(comm.allocate(LENGTH, "float32"))
    ordinary = torch.zeros(LENGTH)
    assert not shared.any() and not also_shared.any()
    for _ in range(3):
        for name in "ab":
            check(name, shared, "one buffer under two names")
    for _ in range(3):
        for buffer in (shared, ordinary, also_shared):
            check("c", buffer, "one name with several buffers")
    half = LENGTH // 2
    for _ in range(3):
        shared.fill_(5.0)
        check("d", shared[:half], "the first half of a buffer")
        if not bool((shared[half:] == 5.0).all()):
            wrong.append("the sum of the first half changes the second one")
        check("e", shared[half:], "the second half of a buffer")
        pushed = [begin("d", shared[:half]), begin("e", shared[half:])]
        for one in pushed:
            end(*one, "both halves at once")
        check("f", shared, "the whole buffer after its halves")
    for _ in range(3):  # and the whole again, whose size its name has
        check("a", shared, "the whole buffer in between")
    comm.release(memory)
    del memory, shared
    check("a", ordinary, "an ordinary buffer after a release")
    for round in range(5):
        fresh = comm.allocate(LENGTH, "float32")
        if fresh.any():
            wrong.append("an allocated buffer has values of others")
        check("g", torch.from_numpy(fresh), "a buffer that was allocated late")
        comm.release(fresh)
        del fresh
    for dtype in ("float16", "float64", "uint8", "int8", "int32", "int64"):
        comm.declare(dtype)
        buffer = torch.from_numpy(comm.allocate(10_007, dtype))
        for turn in range(3):
            values = torch.arange(len(buffer)) % 5 + turn
            buffer.copy_(values * (comm.rank + 1))
            assert comm.wait(comm.push_pull(dtype, buffer), 30.0), dtype
            if not torch.equal(buffer, (values * 3).to(buffer.dtype)):
                wrong.append(dtype)
    comm.shutdown()
    print(json.dumps(wrong))
"""


@pytest.mark.parametrize("path", [path for path in PATHS if path not in ("mixed", "ring")])
def test_sums_in_any_buffer(path: str) -> None:
    with ForkedCluster(SCRIPT, servers=2, env=PATHS[path]) as cluster:
        assert cluster.results(60.0) == [[], []]
