"""What `dynamix doctor` says about the sources of network metrics."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from dynamix_ps.launch.preflight import doctor as checks
from dynamix_ps.metrics.network import sources as levels
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.sources import Level, check_levels


def tried(monkeypatch: pytest.MonkeyPatch, output: str = "", error: str = "", code: int = 0) -> Level:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, output, error)

    monkeypatch.setattr(subprocess, "run", run)
    return check_levels()[0]


def test_reason_and_fix_of_ebpf(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.dumps({"reason": "no BTF", "fix": "boot another kernel"})
    assert tried(monkeypatch, told) == Level("ebpf", False, "no BTF", "boot another kernel")
    assert tried(monkeypatch, "{}").usable


def test_a_crash_of_the_compiler_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, code=-11).reason == "loading the programs ended with code -11"
    assert tried(monkeypatch, error="x\nterminate called\n", code=-6).reason.endswith("terminate called")


def test_a_hang_of_the_compiler_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", run)
    assert "did not end within 60 s" in check_levels()[0].reason


def test_sources_without_privilege_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SourceError("no netlink", "another kernel")

    monkeypatch.setattr(levels, "SockDiagSource", fail)
    tried(monkeypatch, "{}")
    found = {level.name: level for level in check_levels()}
    assert found["sockdiag"] == Level("sockdiag", False, "no netlink", "another kernel")
    assert found["procfs"].usable
    assert "not needed" in found["tracefs"].reason
    assert "not needed" in found["kernel headers"].reason


def test_doctor_warns_of_what_has_a_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "check_levels", lambda: (Level("ebpf", False, "no", "do"), Level("procfs", True, "yes"))
    )
    ebpf, procfs = checks._network(None)
    assert (ebpf.name, ebpf.status, ebpf.detail, ebpf.fix) == ("network ebpf", "warning", "no", "do")
    assert procfs.status == "ok"


def test_doctor_blocks_on_what_the_cluster_file_demands(monkeypatch: pytest.MonkeyPatch) -> None:
    from dynamix_ps.config.schema import Cluster, Config, Metrics, WorkerSection

    config = Config(cluster=Cluster(workers=(WorkerSection(),)), metrics=Metrics(network="ebpf"))
    monkeypatch.setattr(
        checks, "check_levels", lambda: (Level("ebpf", False, "no", "do"), Level("sockdiag", False, "no"))
    )
    assert [check.status for check in checks._network(config)] == ["blocker", "warning"]
