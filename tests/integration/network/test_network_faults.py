"""Networks that change under running BytePS: metrics continue, never fall, and training is not affected."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.byteps_cluster import BedCluster
from dynamix_ps.config import variables
from dynamix_ps.metrics.network.connection import Reading
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
from dynamix_ps.metrics.network.meter import TrafficMeter
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(60)

LIMIT_S = 40.0
GROWTH_BYTES = 2_000_000  # five sums

# Sums go on until a worker finds the file `stop` and tells the others with the sum itself.
SUMS = """
    import json, os, time
    import torch
    from dynamix_ps.comm import open_comm
    from dynamix_ps.metrics.network.meter import rates
    from dynamix_ps.metrics.network.monitor import NetworkMonitor

    torch.set_num_threads(1)
    monitor = NetworkMonitor("auto", lambda kind, fields: print(kind, fields, flush=True))
    comm = open_comm("byteps")
    comm.init()
    comm.declare("x")
    buffer = torch.empty(100_000)
    before, wrong = monitor.read(), []
    while True:
        buffer.fill_(float(os.path.exists("stop")))
        assert comm.wait(comm.push_pull("x", buffer), 50.0)
        if time.time() - before.taken_s < 0.05 and not float(buffer[0]):
            continue
        traffic = monitor.read()
        rate = rates(before, traffic)
        figures = (rate.out_bytes_per_s, rate.in_bytes_per_s, rate.retransmits_per_s, rate.busy)
        if traffic.source != "ebpf" or not all(figure >= 0 for figure in figures):
            wrong.append([traffic.source, *figures])
        before = traffic
        with open(f"worker-{comm.rank}.new", "w") as file:
            file.write(f"{traffic.total.bytes_out}")
        os.rename(f"worker-{comm.rank}.new", f"worker-{comm.rank}.bytes")
        if float(buffer[0]):
            break
    comm.shutdown()
    print(json.dumps([wrong[:3], traffic.total.retransmits]))
"""


class Watched:
    """Two workers under watch: every reading of all their connections is checked."""

    def __init__(self, bed: Bed, collector: EbpfCollector, probe_socket: str) -> None:
        self._collector, self._meter = collector, TrafficMeter()
        self.cluster = BedCluster(bed, SUMS, 2, collector.watch, {variables.PROBE: probe_socket})
        self._last = self._meter.update(self._reading()).total

    def goes_on(self) -> None:
        """Until both workers, as they see it themselves, and all roles together have sent more."""
        files = [self.cluster.folder / f"worker-{rank}.bytes" for rank in range(2)]
        wait_for(lambda: all(file.exists() for file in files), "the first sums", LIMIT_S)
        before, sent_before = [float(file.read_text()) for file in files], self.read()
        wait_for(
            lambda: (
                self.read() > sent_before + GROWTH_BYTES
                and all(float(file.read_text()) > b + GROWTH_BYTES for file, b in zip(files, before, strict=True))
            ),
            "sums that go on",
            LIMIT_S,
        )

    def read(self) -> float:
        """Bytes sent so far; nothing of what was counted may ever fall."""
        total = self._meter.update(self._reading()).total
        for field in ("bytes_out", "bytes_in", "retransmits", "busy_s"):
            assert getattr(total, field) >= getattr(self._last, field), field
        self._last = total
        return total.bytes_out

    def end(self) -> list[float]:
        """Let the workers end. Retransmissions of each, as it saw them itself."""
        (self.cluster.folder / "stop").touch()
        ended = self.cluster.results(LIMIT_S)
        assert [wrong for wrong, _ in ended] == [[], []]
        self.read()
        return [retransmits for _, retransmits in ended]

    def _reading(self) -> Reading:
        return Reading("ebpf", time.time(), self._collector.read())


@pytest.fixture
def watched(bed: Bed, collector: EbpfCollector, probe_socket: str) -> Iterator[Watched]:
    started = Watched(bed, collector, probe_socket)
    with started.cluster:
        started.goes_on()
        yield started
    started.read()
    assert collector.lost == 0


def test_interface_renamed(bed: Bed, watched: Watched) -> None:
    bed.rename_interface("worker-1", "lan7")
    watched.goes_on()
    watched.end()


def test_link_down_and_up(bed: Bed, watched: Watched) -> None:
    before = bed.snmp("worker-0").retransmitted_segments + bed.snmp("server").retransmitted_segments
    bed.unplug("worker-0")
    wait_for(
        lambda: watched.read() and sum(bed.snmp(h).retransmitted_segments for h in ("worker-0", "server")) > before,
        "a segment that is sent again into the gap",
    )
    bed.plug("worker-0")
    watched.goes_on()
    watched.end()


def test_namespace_deleted_while_processes_hold_it(bed: Bed, watched: Watched) -> None:
    bed.remove_name("worker-1")
    assert not os.path.exists(f"/run/netns/{bed.namespace('worker-1')}")
    watched.goes_on()
    watched.end()


def test_namespace_that_dies_with_its_processes(bed: Bed, collector: EbpfCollector, watched: Watched) -> None:
    pid = watched.cluster.pid("worker-1")
    bed.remove_name("worker-1")
    watched.cluster.kill("worker-1")
    sent = watched.read()
    wait_for(lambda: all(c.closed for c in collector.read() if c.pid == pid), "the end of its connections")
    assert watched.read() >= sent
    assert [c for c in collector.read() if c.pid == pid], "last values are kept"
