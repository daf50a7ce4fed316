"""Fixtures shared by integration tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed import Bed, Link, permitted
from dynamix_ps.launch.host.network_probe import NetworkProbe
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
from tests.control_plane import config
from tests.integration.arbitrator.arbitrator_process import ArbitratorProcess
from tests.launching import wait_for

# Background jobs of a shell ignore Ctrl-C, and nohup hangups; what is ignored, children inherit, a handler they do not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture
def arbitrator(tmp_path: Path) -> Iterator[ArbitratorProcess]:
    """A real arbitrator process that listens; ended with the test, also when it never came up."""
    process = ArbitratorProcess(tmp_path / "run", config())
    try:
        process.start()
        process.wait_listening()
        yield process
    finally:
        process.kill()


@pytest.fixture
def bed() -> Iterator[Bed]:
    """A host for scheduler and server and three for workers, in networks of their own with fast, clean links."""
    if reason := permitted():
        pytest.skip(f"test bed: {reason}")
    with Bed({host: Link() for host in ("server", "worker-0", "worker-1", "worker-2")}) as hosts:
        yield hosts


def _ebpf_collector() -> EbpfCollector:
    try:
        return EbpfCollector()
    except SourceError as error:
        pytest.skip(f"eBPF: {error}")


@pytest.fixture
def collector() -> Iterator[EbpfCollector]:
    """Loaded and attached; it sees all networks of this machine."""
    loaded = _ebpf_collector()
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def loaded() -> Iterator[EbpfCollector]:
    """One collector for all tests of a file, as loading takes a while; nobody is watched yet."""
    collector = _ebpf_collector()
    yield collector
    collector.close()


class _NoEvents:
    def event(self, kind: str, **fields: Any) -> None:
        pytest.fail(f"{kind}: {fields}")


@pytest.fixture
def probe_socket(tmp_path: Path, collector: EbpfCollector) -> Iterator[str]:
    """Where a real probe process answers, started as the launcher does it; skipped where eBPF is not permitted."""
    probe = NetworkProbe(config(), "test", tmp_path, tmp_path / "probe.log", _NoEvents())
    try:
        wait_for(lambda: probe.check() or not probe.starting, "the probe to answer")
        assert probe.socket is not None
        yield probe.socket
    finally:
        probe.close()
