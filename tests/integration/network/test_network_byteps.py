"""The network metrics of real BytePS between hosts, compared with the kernel's own counters."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.byteps_cluster import BedCluster
from dynamix_ps.config import variables
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector

pytestmark = [pytest.mark.timeout(90), pytest.mark.alone]

LIMIT_S = 60.0
ROUNDS, NUMBERS = 30, 500_000
SUMMED_BYTES = ROUNDS * 4 * NUMBERS  # pushed, and pulled
WORKERS = ("worker-0", "worker-1", "worker-2")
HOSTS = (*WORKERS, "server")
WORKER_BITS_PER_S, SERVER_BITS_PER_S = 3e8, 6e8  # what two cores carry without losing packets of their own

SUMS = f"""
    import json, os, time
    import torch
    from dynamix_ps.comm import open_comm
    from dynamix_ps.metrics.network.monitor import NetworkMonitor

    torch.set_num_threads(1)
    monitors = [NetworkMonitor(name, lambda kind, fields: print(kind, fields)) for name in ("ebpf", "sockdiag")]
    for monitor in monitors:
        monitor.read()
    comm = open_comm("byteps")
    comm.init()
    before = monitors[0].read().total  # the rates of the links have been measured
    comm.declare("x")
    buffer = torch.empty({NUMBERS})
    for _ in range({ROUNDS}):
        buffer.fill_(comm.rank + 1)
        assert comm.wait(comm.push_pull("x", buffer), 50.0)
        assert float(buffer[-1]) == sum(range(1, comm.size + 1))
    print("summed", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    seen = {{traffic.source: traffic.total for traffic in [monitor.read() for monitor in monitors]}}
    comm.shutdown()
    told = {{name: [t.bytes_out, t.bytes_in, t.retransmits] for name, t in seen.items()}}
    print(json.dumps({{"before": [before.bytes_out, before.bytes_in], **told}}))
"""


def test_losses_and_bytes(bed: Bed, collector: EbpfCollector, probe_socket: str) -> None:
    """One per cent of what worker-1 sends is lost. Asked are eBPF itself and, in each worker, both its monitors."""
    for host in HOSTS:
        bits_per_s = SERVER_BITS_PER_S if host == "server" else WORKER_BITS_PER_S
        bed.set_link(host, dataclasses.replace(bed.link(host), up_bits_per_s=bits_per_s))
    bed.set_link("worker-1", dataclasses.replace(bed.link("worker-1"), up_loss=0.01))
    with BedCluster(bed, SUMS, len(WORKERS), collector.watch, {variables.PROBE: probe_socket}) as cluster:
        for worker in WORKERS:
            cluster.wait_for(worker, "summed", LIMIT_S)
        connections = collector.read()
        counted = {host: bed.snmp(host).retransmitted_segments for host in HOSTS}
        (cluster.folder / "go").touch()
        from_inside = dict(zip(WORKERS, cluster.results(LIMIT_S), strict=True))
        workers = {worker: cluster.pid(worker) for worker in WORKERS}

    lost = bed.dropped("worker-1")
    assert 0.005 < lost / (SUMMED_BYTES / 1448 * 1.1) < 0.02, "not the loss that was asked for"
    retransmits = {h: sum(c.retransmits for c in connections if c.netns == bed.inode(h)) for h in HOSTS}
    for host in HOSTS:
        assert retransmits[host] == pytest.approx(counted[host], rel=0.02, abs=1), host
    assert retransmits["worker-1"] > 100
    others = sum(retransmits.values()) - retransmits["worker-1"]
    assert others <= 0.1 * retransmits["worker-1"] + bed.overruns(), retransmits

    for worker, pid in workers.items():
        pushed, pulled = (SUMMED_BYTES + before for before in from_inside[worker].pop("before"))
        own = [c for c in connections if c.pid == pid]
        assert sum(c.bytes_out for c in own) == pytest.approx(pushed, rel=0.02)
        assert sum(c.bytes_in for c in own) == pytest.approx(pulled, rel=0.02)
        to_worker = [c for c in connections if c.netns == bed.inode("server") and bed.address(worker) in c.remote]
        assert sum(c.bytes_in for c in to_worker) == pytest.approx(pushed, rel=0.02)
        assert sum(c.bytes_out for c in to_worker) == pytest.approx(pulled, rel=0.02)
        expected = pytest.approx([pushed, pulled, counted[worker]], rel=0.02, abs=1)
        assert from_inside[worker] == {"ebpf": expected, "sockdiag": expected}
    assert collector.lost == 0
