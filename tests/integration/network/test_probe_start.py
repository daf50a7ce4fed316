"""The probe of a run starts beside its roles: no role waits for it, and what becomes of it is told once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.launch.host import network_probe
from dynamix_ps.launch.messages.agent_messages import (
    Begin,
    Prepared,
    RequestRefused,
    RoleEnded,
    RoleOutput,
    RunEvent,
    Started,
)
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.monitor import NetworkMonitor
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.start import ProbeStarting, check_started
from tests.integration.launch.test_host_agent import RUN_ID, TRAINS, Rig
from tests.launching import ROOT, assert_nothing_left, scratch_of, wait_for

pytestmark = pytest.mark.timeout(60)

HELD = """
import runpy, sys, time
from pathlib import Path
folder = Path(__file__).parents[1]
(folder / "began").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
if (folder / "go").read_text():
    print((folder / "go").read_text())
    sys.exit(3)
sys.argv[1:] = sys.argv[-2:]
runpy.run_module("tests.probes", run_name="__main__", alter_sys=True)
"""


class HeldProbe:
    """The run's probe is one that goes on when the test says so."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        modules = folder / "modules"
        modules.mkdir()
        (modules / "held_probe.py").write_text(HELD)
        monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{modules}")
        monkeypatch.setenv(variables.PROBE, str(folder / "no-probe-of-the-host"))
        monkeypatch.setattr(network_probe, "_MODULE", "held_probe")
        monkeypatch.setattr(network_probe, "check_permitted", lambda: None)

    def go(self, error: str = "") -> None:
        (self.folder / "go.new").write_text(error)
        os.replace(self.folder / "go.new", self.folder / "go")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldProbe:
    return HeldProbe(tmp_path, monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, held: HeldProbe) -> Iterator[Rig]:
    before = Path.cwd()
    made = Rig(tmp_path, TRAINS)
    yield made
    made.agent.close()
    os.chdir(before)
    assert_nothing_left(RUN_ID)


def begin(rig: Rig) -> str:
    """Prepare, start the role and hear from it while the probe is held; returns the probe's socket."""
    rig.prepare(mode="observe")
    assert [type(message) for message in rig.got] == [Prepared], rig.got
    rig.agent.receive(Begin({"a": "10.0.0.1", "b": "10.0.0.2"}, 20001, 20002))
    rig.until(lambda: rig.all(RoleOutput), "output of the role")
    rig.until((rig.folder / "began").exists, "the probe to run")
    assert rig.all(Started) == [Started("worker-1")]
    (scratch,) = scratch_of(RUN_ID)
    (worker,) = (pid for pid in processes_of(RUN_ID, "b") if b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    socket = str(scratch / "probe.sock")
    assert f"{variables.PROBE}={socket}".encode() in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    with pytest.raises(ProbeStarting):
        check_started(socket)
    return socket


class Role:
    """What a role of the run reads, by its monitor."""

    def __init__(self, socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variables.PROBE, socket)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.monitor = NetworkMonitor("auto", lambda kind, fields: self.said.append((kind, fields)))

    def source(self) -> str:
        return self.monitor.read().source


def test_roles_run_before_the_probe_answers(rig: Rig, held: HeldProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = begin(rig)
    role = Role(socket, monkeypatch)
    assert role.source() == "none"
    held.go()
    rig.until(lambda: role.source() == "ebpf", "the probe to answer")
    assert ProbeSource(socket).read().source == "ebpf"
    assert role.said == []
    assert not rig.all(RunEvent)
    role.monitor.close()


def test_a_probe_that_does_not_come_is_told_once_with_its_reason(
    rig: Rig, held: HeldProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = Role(begin(rig), monkeypatch)
    assert role.source() == "none"
    held.go("error: the verifier said no")
    rig.until(lambda: role.source() != "none", "another source")
    assert role.source() == "sockdiag"
    detail = "eBPF: the verifier said no; using sock_diag"
    assert rig.all(RunEvent) == [RunEvent("degraded", {"what": "network metrics", "detail": detail})]
    assert role.said == [], "the launcher has told it"
    role.monitor.close()
    assert not rig.all(RoleEnded)


def test_a_probe_that_hangs_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_probe, "START_LIMIT_S", 0.0)
    rig.prepare(mode="observe")
    rig.until(lambda: rig.all(RunEvent), "the event")
    (event,) = rig.all(RunEvent)
    assert isinstance(event, RunEvent)
    assert "the probe did not get ready in time" in event.fields["detail"]
    assert not [pid for pid in processes_of(RUN_ID, "b") if b"held_probe" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_probe_that_still_starts_ends_with_the_run(rig: Rig) -> None:
    begin(rig)
    (probe,) = (pid for pid in processes_of(RUN_ID, "b") if b"held_probe" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(probe, signal.SIGSTOP)
    rig.agent.close()
    wait_for(lambda: not Path(f"/proc/{probe}").exists(), "the probe to end")


def test_a_run_that_demands_it_begins_when_it_answers(
    rig: Rig, held: HeldProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "WAITED_S", 0.0)
    demanding = "cluster: {hosts: {a: {}, b: {}}, workers: [{}, {}]}\ncomm: gloo\nmetrics: {network: ebpf}\n"
    rig.prepare(config=demanding)
    assert isinstance(rig.got[-1], RequestRefused), rig.got
    assert rig.got[-1].reason.startswith("metrics.network: ebpf is not possible here: the probe did not get ready")
    rig.agent.close()


def test_what_is_not_permitted_is_not_tried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SourceError("somebody lacks CAP_BPF", "become root")

    monkeypatch.setattr(network_probe, "check_permitted", refuse)
    rig.prepare(mode="observe")
    (event, ready) = rig.got
    assert isinstance(ready, Prepared)
    assert isinstance(event, RunEvent)
    assert event.fields["detail"] == "eBPF: somebody lacks CAP_BPF; become root; using sock_diag"
    assert not (rig.folder / "began").exists()
