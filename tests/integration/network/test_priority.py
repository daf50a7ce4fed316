"""Over a slow link, sums are complete in the order of their priorities, not of the pushes."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.testbed import Bed
from tests.forked_cluster import ForkedBedCluster

pytestmark = pytest.mark.timeout(90)

LIMIT_S = 60.0
WORKERS = ("worker-0", "worker-1")
BITS_PER_S = 20e6

PUSHES = """
    import json
    import torch
    from dynamix_ps.comm import open_comm

    LARGE, SMALL = 100_000, 100
    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    early = []  # complete before a sum with a lower priority
    for priorities in ([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]):  # the last push comes first, and then the first one
        open_sums = {}
        for number, priority in enumerate(priorities):
            comm.declare(str(number), priority=priority)
        for number, priority in enumerate(priorities):
            buffer = torch.full([LARGE if priority else SMALL], comm.rank + 1.0)
            open_sums[priority] = comm.push_pull(str(number), buffer), buffer
        for priority in range(len(priorities)):
            if priority in open_sums:
                handle, buffer = open_sums.pop(priority)
                assert comm.wait(handle, 50.0) and bool((buffer == 3).all())
            for later in [one for one, (handle, _) in open_sums.items() if comm.wait(handle, 0.0)]:
                early.append((priorities, priority, later))
                del open_sums[later]
    comm.shutdown()
    print(json.dumps(early))
"""


def test_what_is_needed_first_arrives_first(bed: Bed) -> None:
    rate = {"up_bits_per_s": BITS_PER_S, "down_bits_per_s": BITS_PER_S}
    for worker in WORKERS:
        bed.set_link(worker, dataclasses.replace(bed.link(worker), **rate))
    with ForkedBedCluster(bed, PUSHES, len(WORKERS)) as cluster:
        assert cluster.results(LIMIT_S) == [[], []]
