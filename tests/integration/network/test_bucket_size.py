"""Between hosts, the rate of the links decides how large a bucket is, on all workers alike."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.testbed import Bed
from tests.forked_cluster import ForkedBedCluster

pytestmark = pytest.mark.timeout(90)

LIMIT_S = 60.0
WORKERS = ("worker-0", "worker-1")
BYTES_PER_S = 12.5e6

BOTH_PLANES = """
    import json, os
    import torch
    from dynamix_ps.comm import open_comm
    from worker_hooks.torch.gradients import TorchExchange

    def layout(comm):
        parts = {str(n): torch.nn.Parameter(torch.zeros(25_000)) for n in range(4)}
        return [bucket.rounded for bucket in TorchExchange(parts, [], comm, 4_000_000, comm.name).buckets]

    torch.set_num_threads(1)
    servers = open_comm("byteps")
    servers.init()
    os.environ["DMLC_PS_ROOT_URI"] = os.environ["RING_ROOT"]
    ring = open_comm("gloo")
    ring.init()
    told = [(comm.least_bucket_bytes, layout(comm)) for comm in (servers, ring)]
    ring.shutdown()
    servers.shutdown()
    print(json.dumps(told))
"""


def test_a_slow_link_makes_small_buckets(bed: Bed) -> None:
    rate = {"up_bits_per_s": 8 * BYTES_PER_S, "down_bits_per_s": 8 * BYTES_PER_S}
    for worker in WORKERS:
        bed.set_link(worker, dataclasses.replace(bed.link(worker), **rate))
    with ForkedBedCluster(bed, BOTH_PLANES, len(WORKERS), env={"RING_ROOT": bed.address("worker-0")}) as cluster:
        first, second = cluster.results(LIMIT_S)
    assert first == second, "all workers lay buckets out alike"
    for bytes_per_ms, buckets in first:
        assert 0.2 < 1000 * bytes_per_ms / BYTES_PER_S < 1.5, "a busy machine is slower than its links"
        assert buckets == [25_000] * 4 + [0]
