"""The network probe of a run: what the launcher does, whole runs with and without a probe, and the command."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.metrics.network.probe.client import ProbeSource
from tests.integration.launch.test_launch_byteps import CLUSTER, TRAIN
from tests.integration.network.probe_needs import POWERLESS, needs_ebpf, needs_no_host_probe, needs_setpriv
from tests.launching import (
    ROOT,
    assert_nothing_left,
    begun,
    dynamix,
    environment,
    kill_all,
    read_until,
    run_id_in,
    wait_for,
)
from tests.probes import probe_process

pytestmark = pytest.mark.timeout(120)

# --- what the launcher does about it ---

LAUNCHER = """
import json, sys, time
from pathlib import Path
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.host.network_probe import NetworkProbe
from dynamix_ps.metrics.network.probe.client import ProbeSource

class Events:
    def event(self, kind, **fields):
        print(kind, json.dumps(fields))

def main():
    folder = Path(sys.argv[1])
    config = Config.model_validate({"cluster": {"workers": ({},)}, **json.loads(sys.argv[2])})
    probe = NetworkProbe(config, "0badc0de", folder, folder / "probe.log", Events())
    try:
        while probe.starting:
            probe.check()
            time.sleep(0.02)
        print("probe is", probe.socket, flush=True)
        if probe.socket not in (None, "none"):
            print("it says", ProbeSource(probe.socket).read().source, flush=True)
            sys.stdin.readline()
    finally:
        probe.close()
    return 0

sys.exit(exit_code_of(main))
"""


class Launcher:
    """A process that does for a probe what `dynamix launch` does."""

    def __init__(self, folder: Path, before: Sequence[str] = (), host: str = "", **config: Any) -> None:
        self.folder = folder
        argv = [*before, sys.executable, "-c", LAUNCHER, str(folder), json.dumps(config)]
        self.process = begun(argv, ROOT, environment(DYNAMIX_PROBE=host), subprocess.PIPE)

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate("end\n")
        assert not (self.folder / "probe.sock").exists()
        return self.process.returncode, output

    def probe(self) -> Path:
        log = (self.folder / "probe.log").read_text()
        process = Path("/proc") / log.rpartition("(pid ")[2].rstrip(")\n")
        assert b"metrics.network.probe" in (process / "cmdline").read_bytes()
        return process


@needs_ebpf
@needs_no_host_probe
def test_a_run_has_its_own_probe_where_that_is_permitted(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    read_until(launcher.process, "it says ebpf")
    probe = launcher.probe()
    code, _ = launcher.end()
    assert code == 0
    assert not probe.exists()


@needs_ebpf
@needs_no_host_probe
def test_a_launcher_killed_with_9_takes_its_probe_along(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    read_until(launcher.process, "it says ebpf")
    probe = launcher.probe()
    launcher.process.kill()
    launcher.process.communicate()
    wait_for(lambda: not probe.exists(), "the probe to end")


@needs_ebpf
@needs_no_host_probe
def test_a_probe_that_hangs_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    read_until(launcher.process, "it says ebpf")
    probe = launcher.probe()
    os.kill(int(probe.name), signal.SIGSTOP)
    launcher.process.communicate("end\n")
    assert launcher.process.returncode == 0
    assert not probe.exists()


@needs_setpriv
@needs_no_host_probe
def test_without_permission_the_reason_is_an_event_and_the_run_goes_on(tmp_path: Path) -> None:
    code, output = Launcher(tmp_path, POWERLESS).end()
    assert code == 0, output
    said, probe = output.splitlines()
    assert probe == "probe is none"
    kind, _, fields = said.partition(" ")
    assert kind == "degraded"
    assert json.loads(fields)["what"] == "network metrics"
    detail = json.loads(fields)["detail"]
    assert detail.startswith("eBPF: ")
    assert "CAP_BPF" in detail
    assert detail.endswith("; using sock_diag")


@needs_setpriv
@needs_no_host_probe
def test_a_run_that_demands_ebpf_does_not_begin_without_permission(tmp_path: Path) -> None:
    code, output = Launcher(tmp_path, POWERLESS, metrics={"network": "ebpf"}).end()
    assert code == 3, output
    assert output.startswith("error: metrics.network: ebpf is not possible here: ")
    assert "CAP_BPF" in output
    assert "probe is" not in output


@pytest.mark.parametrize(
    "config",
    [{"mode": "off"}, {"comm": "local"}, *({"metrics": {"network": name}} for name in ("off", "sockdiag", "procfs"))],
    ids=str,
)
def test_where_nothing_would_ask_it_there_is_no_probe(tmp_path: Path, config: dict[str, Any]) -> None:
    assert Launcher(tmp_path, **config).end() == (0, "probe is None\n")
    assert list(tmp_path.iterdir()) == []


@needs_setpriv
def test_a_probe_that_runs_already_is_used(tmp_path: Path) -> None:
    with probe_process(tmp_path / "host.sock"):
        code, output = Launcher(tmp_path, POWERLESS, host=f"{tmp_path}/host.sock").end()
        assert (code, output) == (0, f"probe is {tmp_path}/host.sock\nit says ebpf\n")
        assert ProbeSource(f"{tmp_path}/host.sock").read().connections  # it goes on after the run
        assert not (tmp_path / "probe.log").exists()


@needs_setpriv
def test_a_probe_of_the_host_that_hangs_is_a_reason(tmp_path: Path) -> None:
    with probe_process(tmp_path / "host.sock") as probe:
        probe.send_signal(signal.SIGSTOP)
        code, output = Launcher(tmp_path, POWERLESS, host=f"{tmp_path}/host.sock").end()
    assert code == 0, output
    assert f"eBPF: network probe {tmp_path}/host.sock: did not answer within 0.5 s; " in output
    assert "CAP_BPF" in output


# --- whole runs over real BytePS ---


def start_run(folder: Path, iterations: int, before: Sequence[str] = ()) -> tuple[subprocess.Popen[str], str]:
    """(launcher, run id)"""
    (folder / "cluster.yaml").write_text(
        CLUSTER.format(runs=folder / "runs", policy="static", comm="byteps", host="127.0.0.1")
    )
    (folder / "train.py").write_text(TRAIN.format(iterations=iterations))
    command = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", "cluster.yaml", "--", "python", "train.py"]
    process = begun([*before, *command], folder, environment())
    return process, run_id_in(read_until(process, "run folder"))


def windows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs" / "latest" / "windows.csv").open() as file:
        return list(csv.DictReader(file))


def sources_of(folder: Path) -> set[tuple[str, str]]:
    """(rank, source of network metrics) of all windows so far."""
    return {(window["rank"], window["network_source"]) for window in windows_of(folder)}


def degraded_in(folder: Path) -> list[str]:
    """Which roles said that their network metrics are worse than they were, once for each time."""
    with (folder / "runs" / "latest" / "events.jsonl").open() as file:
        events = [json.loads(line) for line in file if line.endswith("\n")]
    return [e["source"] for e in events if e["kind"] == "degraded" and e["what"] == "network metrics"]


@needs_setpriv
@needs_no_host_probe
@pytest.mark.timeout(180)
def test_a_run_without_permission_says_so_once_and_measures_by_sock_diag(tmp_path: Path) -> None:
    process, run_id = start_run(tmp_path, 1500, POWERLESS)  # long beside the time sock_diag takes to load
    try:
        output, _ = process.communicate()
    finally:
        kill_all(run_id, [process])
    assert process.returncode == 0, output
    told = [line for line in output.splitlines() if "degraded: network metrics" in line]
    assert len(told) == 1, output
    assert told[0].startswith("event degraded: network metrics (launcher): eBPF: ")
    windows = windows_of(tmp_path)
    assert sources_of(tmp_path) == {("0", "sockdiag"), ("1", "sockdiag")}
    assert any(float(window["push_bytes_per_s"] or 0) > 0 for window in windows)
    assert "CAP_BPF" in (tmp_path / "runs" / "latest" / "summary.md").read_text()
    assert_nothing_left(run_id)


@needs_ebpf
@needs_no_host_probe
@pytest.mark.timeout(180)
def test_training_goes_on_when_the_probe_is_killed(tmp_path: Path) -> None:
    roles = ["scheduler", "server-0", "worker-0", "worker-1"]
    process, run_id = start_run(tmp_path, 100_000)
    try:
        read_until(process, "in training")
        wait_for(lambda: {("0", "ebpf"), ("1", "ebpf")} <= sources_of(tmp_path), "windows with eBPF")
        log = (tmp_path / "runs" / "latest" / "logs" / "probe.log").read_text()
        os.kill(int(log.rpartition("(pid ")[2].rstrip(")\n")), signal.SIGKILL)
        wait_for(lambda: {("0", "sockdiag"), ("1", "sockdiag")} <= sources_of(tmp_path), "windows with sock_diag")
        wait_for(lambda: set(degraded_in(tmp_path)) == set(roles), "all to say so")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    finally:
        kill_all(run_id, [process])
    assert process.returncode == 130, output
    assert sorted(degraded_in(tmp_path)) == roles
    assert_nothing_left(run_id)


# --- the command ---


def probe_command(*arguments: str, **changes: str) -> tuple[int, str]:
    process = dynamix("probe", *arguments, cwd=ROOT, **changes)
    output, _ = process.communicate()
    return process.returncode, output


def test_without_a_probe_the_command_says_what_to_run(tmp_path: Path) -> None:
    code, output = probe_command("--socket", f"{tmp_path}/none", "--once")
    assert code == 3
    assert f"error: network probe {tmp_path}/none: there is no such socket" in output
    assert "sudo dynamix probe serve" in output
    assert "Traceback" not in output


@needs_ebpf
def test_the_command_serves_and_shows(tmp_path: Path) -> None:
    """Two roles on real connections: the worker sends, the server receives."""
    path = str(tmp_path / "p.sock")
    role = (
        "import socket, sys, time; sys.path.insert(0, sys.argv[3])\n"
        "from dynamix_ps.metrics.network.probe.client import ProbeSource\n"
        "source = ProbeSource(sys.argv[1]); source.read()\n"
        "if sys.argv[2] == 'listen':\n"
        "    server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)\n"
        "    peer, _ = server.accept()\n"
        "    while peer.recv(1 << 16): pass\n"
        "else:\n"
        "    peer = socket.create_connection(('127.0.0.1', int(sys.argv[2])))\n"
        "    while True: peer.sendall(b'x' * 10000); time.sleep(0.01)\n"
    )
    with contextlib.ExitStack() as stack:
        started: list[subprocess.Popen[str]] = []
        stack.callback(lambda: kill_all("", started))
        serve = dynamix("probe", "serve", "--socket", path, cwd=ROOT)
        started.append(serve)
        read_until(serve, "ready ")

        def start(name: str, what: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", role, path, what, str(ROOT)]
            changed = environment(DYNAMIX_ROLE_NAME=name, DYNAMIX_RUN_ID="0badcafe")
            process = subprocess.Popen(command, env=changed, stdout=subprocess.PIPE, text=True)
            started.append(process)
            return process

        server = start("server-0", "listen")
        assert server.stdout is not None
        start("worker-0", server.stdout.readline().strip())

        def talks() -> dict[str, Any]:
            code, output = probe_command("--once", "--json", "--interval", "0.2", "--socket", path)
            assert code == 0, output
            return {f"{talk['name']} {talk['direction']} {talk['peer']}": talk for talk in json.loads(output)["talks"]}

        wait_for(lambda: {"worker-0 push server-0", "server-0 pull worker-0"} <= talks().keys(), "both ends")
        push = talks()["worker-0 push server-0"]
        assert push["out_bytes_per_s"] > 0
        assert push["source"] == "ebpf"
        assert push["run"] == "0badcafe"
        code, output = probe_command("--once", "--interval", "0.2", DYNAMIX_PROBE=path)
        assert code == 0
        assert "worker-0 -> server-0 host=" in output
        serve.terminate()
        assert serve.wait() == 0
