"""The network probe with real processes: what eBPF sees by way of it, and every way in which it can fail.

Whatever happens to the probe, a monitor goes on with the next source, says so once, and comes back when it can.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.metrics.network.connection import endpoint
from dynamix_ps.metrics.network.levels import check_levels
from dynamix_ps.metrics.network.meter import Traffic, rates
from dynamix_ps.metrics.network.monitor import FIRST_RETRY_S, LONGEST_RETRY_S, NetworkMonitor
from dynamix_ps.metrics.network.probe_client import ProbeSource
from dynamix_ps.metrics.network.probe_protocol import DEFAULT_SOCKET
from tests.integration.test_launch_byteps import CLUSTER, TRAIN
from tests.launching import (
    ROOT,
    assert_nothing_left,
    dynamix,
    environment,
    kill_all,
    read_until,
    run_id_in,
    wait_for,
)
from tests.probes import false_probe, probe_process

pytestmark = pytest.mark.timeout(120)

EBPF = check_levels()[0]
REAL = "dynamix_ps.metrics.network.probe"
needs_ebpf = pytest.mark.skipif(not EBPF.usable, reason=f"eBPF is not possible here: {EBPF.reason}")
needs_no_host_probe = pytest.mark.skipif(os.path.exists(DEFAULT_SOCKET), reason=f"a probe is at {DEFAULT_SOCKET}")
UNBOUNDED_S = 5.0  # a reading is to take half a second; this is for a machine that is busy with other things

# root without any capability
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
needs_setpriv = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can give up its rights, with setpriv"
)


class Pump:
    """A connection of this process to itself, and bytes through it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._out = socket.create_connection(server.getsockname())
            self._in, _ = server.accept()
        self.ends = {endpoint(*end.getsockname()) for end in (self._out, self._in)}
        self.sent = 0

    def send(self, size: int) -> None:
        """When it returns, the bytes are there and, as nothing else is on the way, acknowledged."""
        self._out.sendall(b"x" * size)
        left = size
        while left:
            left -= len(self._in.recv(left))
        self.sent += size

    def close(self) -> None:
        self._out.close()
        self._in.close()


@pytest.fixture
def pump() -> Iterator[Pump]:
    pump = Pump()
    yield pump
    pump.close()


class Watcher:
    """A monitor of this process, with a clock that can be moved."""

    def __init__(self, path: Path, pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DYNAMIX_PROBE", str(path))
        self.events: list[tuple[str, str]] = []
        self.late_s = 0.0
        self.monitor = NetworkMonitor(
            "auto", self._note, keep=lambda c: c.local in pump.ends, clock=lambda: time.monotonic() + self.late_s
        )

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        self.events.append((kind, fields["detail"]))

    def read(self) -> Traffic:
        began_s = time.monotonic()
        traffic = self.monitor.read()
        assert time.monotonic() - began_s < UNBOUNDED_S
        return traffic

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@pytest.fixture
def watcher(tmp_path: Path, pump: Pump, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    watcher = Watcher(tmp_path / "p.sock", pump, monkeypatch)
    yield watcher
    watcher.monitor.close()


@needs_ebpf
def test_the_kernel_counts_what_was_sent(tmp_path: Path, pump: Pump, watcher: Watcher) -> None:
    with probe_process(tmp_path / "p.sock", REAL):
        first = watcher.read()
        pump.send(1_000_000)
        wait_for(lambda: watcher.read().total.bytes_out >= 1_000_000, "all bytes to be acknowledged")
        second = watcher.read()
    assert second.source == "ebpf"
    assert second.total.bytes_out - first.total.bytes_out == 1_000_000
    assert second.total.bytes_in - first.total.bytes_in == 1_000_000
    assert watcher.events == []


@needs_ebpf
@needs_setpriv
def test_a_process_without_any_right_reads_its_own_connections(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from tests.integration.test_network_probe import Pump\n"
        "from dynamix_ps.metrics.network.probe_client import ProbeSource\n"
        "pump, source = Pump(), ProbeSource(sys.argv[1])\n"
        "source.read(); pump.send(5000); print(sorted(c.bytes_in for c in source.read().connections))\n"
    )
    with probe_process(tmp_path / "p.sock", REAL):
        command = [*POWERLESS, sys.executable, "-c", code, str(tmp_path / "p.sock"), str(ROOT)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "[0.0, 5000.0]\n", done.stderr


@needs_ebpf
@needs_setpriv
def test_no_user_sees_the_connections_of_another(tmp_path: Path, pump: Pump) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    ask = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile('rw');\n"
        'print(\'{"v":1,"ask":"all"}\', file=f, flush=True); print(f.readline())'
    )
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-I", "-c", ask]
    with probe_process(tmp_path / "p.sock", REAL):
        source = ProbeSource(str(tmp_path / "p.sock"))
        source.read()
        pump.send(1)
        assert {c.local for c in source.read().connections} >= pump.ends
        command = [*nobody, str(tmp_path / "p.sock")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
        source.close()
    assert '"connections":[]' in done.stdout, done.stdout + done.stderr
    assert str(os.getpid()) not in done.stdout


@needs_ebpf
def test_a_probe_that_is_killed_and_one_that_takes_its_place(tmp_path: Path, pump: Pump, watcher: Watcher) -> None:
    with probe_process(tmp_path / "p.sock", REAL) as probe:
        assert watcher.read().source == "ebpf"
        pump.send(1000)
        before = watcher.read()
        assert before.total.bytes_out == 1000
        probe.kill()
        probe.wait()
        pump.send(500)
        after = watcher.read()
        assert after.source == "sockdiag"
        assert after.total.bytes_out == 1500  # both copy the same counters of the kernel
        assert watcher.read().source == "sockdiag"
    ((kind, detail),) = watcher.events
    assert kind == "degraded"
    assert detail.startswith(f"eBPF: network probe {tmp_path}/p.sock: ")
    assert detail.endswith("; using sock_diag")
    with probe_process(tmp_path / "p.sock", REAL):  # over the socket that the killed one left
        watcher.late_s += FIRST_RETRY_S
        assert watcher.read().source == "ebpf"
        pump.send(250)
        assert watcher.read().total.bytes_out == 1750
    assert watcher.kinds() == ["degraded", "recovered"]


def test_a_probe_that_hangs(tmp_path: Path, watcher: Watcher) -> None:
    with probe_process(tmp_path / "p.sock") as probe:
        watcher.read()
        assert watcher.monitor._source is not None
        assert watcher.monitor._source.name == "ebpf"
        probe.send_signal(signal.SIGSTOP)
        assert watcher.read().source == "sockdiag"
        assert watcher.events == [
            ("degraded", f"eBPF: network probe {tmp_path}/p.sock: did not answer within 0.5 s; using sock_diag")
        ]
        watcher.late_s += LONGEST_RETRY_S
        assert watcher.read().source == "sockdiag"  # it hangs still
        assert watcher.kinds() == ["degraded"]
        probe.send_signal(signal.SIGCONT)
        watcher.late_s += LONGEST_RETRY_S
        assert watcher.read().source == "ebpf"
        assert watcher.kinds() == ["degraded", "recovered"]


def pour(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * (1 << 20))


def hang_up(connection: socket.socket) -> None:
    connection.recv(100)
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "answer",
    [
        lambda connection: connection.sendall(b"\x00\xff" * 500 + b"\n"),
        lambda connection: connection.sendall(b'{"v":1,"connections":[[[[\n'),
        lambda connection: connection.sendall(b'{"v":1,"taken_s":'),
        lambda connection: None,
        hang_up,
        pour,
    ],
    ids=["garbage", "broken", "half a line", "nothing", "hangs up", "gigabytes"],
)
def test_whatever_is_at_the_socket(
    tmp_path: Path, pump: Pump, watcher: Watcher, answer: Callable[[socket.socket], None]
) -> None:
    with false_probe(tmp_path / "p.sock", answer):
        first = watcher.read()
        pump.send(3000)
        second = watcher.read()
        watcher.late_s += LONGEST_RETRY_S
        third = watcher.read()
    assert [first.source, second.source, third.source] == ["sockdiag"] * 3
    assert second.total.bytes_out - first.total.bytes_out == 3000
    assert rates(first, third).out_bytes_per_s > 0
    assert watcher.kinds() == ["degraded"]


def test_a_socket_that_nobody_serves(tmp_path: Path, watcher: Watcher) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "p.sock"))
    left.close()
    assert watcher.read().source == "sockdiag"
    assert watcher.events[0][1].endswith("p.sock: nobody listens there any more; using sock_diag")
    with probe_process(tmp_path / "p.sock"):
        watcher.late_s += FIRST_RETRY_S
        assert watcher.read().source == "ebpf"


def test_two_probes_at_one_path(tmp_path: Path, watcher: Watcher) -> None:
    with probe_process(tmp_path / "p.sock"):
        command = [sys.executable, "-m", REAL, "--socket", str(tmp_path / "p.sock")]
        second = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert second.returncode == 3
        assert f"error: another probe serves {tmp_path}/p.sock already" in second.stderr
        assert watcher.read().source == "ebpf"
        assert watcher.events == []


@pytest.mark.parametrize("flood", ['{"v":1,"ask":"all"}\n' * 1000, "x" * 100_000], ids=["requests", "bytes"])
def test_a_client_that_floods_and_never_reads(tmp_path: Path, watcher: Watcher, flood: str) -> None:
    code = (
        "import socket, sys\n"
        "while True:\n"
        "    with socket.socket(socket.AF_UNIX) as s:\n"
        "        s.connect(sys.argv[1])\n"
        "        try:\n"
        "            while True: s.sendall(sys.argv[2].encode())\n"
        "        except OSError: pass\n"
        "    print('dropped', flush=True)\n"
    )
    with probe_process(tmp_path / "p.sock"):
        command = [sys.executable, "-c", code, str(tmp_path / "p.sock"), flood]
        flooding = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for _ in range(5):
                read_until(flooding, "dropped")
                assert watcher.read().source == "ebpf"
        finally:
            flooding.kill()
            flooding.communicate()
    assert watcher.events == []


def test_a_probe_ends_in_order_and_can_be_started_again(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with probe_process(tmp_path / "p.sock") as probe:
            source = ProbeSource(str(tmp_path / "p.sock"))
            source.read()
            probe.send_signal(number)
            assert probe.wait() == 0
            assert not (tmp_path / "p.sock").exists()


@needs_setpriv
def test_without_permission_it_says_why_and_what_to_do(tmp_path: Path) -> None:
    command = [*POWERLESS, sys.executable, "-m", REAL, "--socket", str(tmp_path / "p.sock")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "CAP_BPF" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p.sock").exists()


# --- what the launcher does about it ---

LAUNCHER = """
import json, sys
from pathlib import Path
from dynamix_ps.cli.report import exit_code_of
from dynamix_ps.config import Config
from dynamix_ps.launch.network_probe import network_probe
from dynamix_ps.metrics.network.probe_client import ProbeSource

class Events:
    def event(self, kind, **fields):
        print(kind, json.dumps(fields))

def main():
    folder = Path(sys.argv[1])
    config = Config.model_validate({"cluster": {"workers": ({},)}, **json.loads(sys.argv[2])})
    with network_probe(config, "0badc0de", folder, folder / "probe.log", Events()) as probe:
        print("probe is", probe, flush=True)
        if probe not in (None, "none"):
            print("it says", ProbeSource(probe).read().source, flush=True)
            sys.stdin.readline()
    return 0

sys.exit(exit_code_of(main))
"""


class Launcher:
    """A process that does for a probe what `dynamix launch` does."""

    def __init__(self, folder: Path, before: Sequence[str] = (), host: str = "", **config: Any) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", LAUNCHER, str(folder), json.dumps(config)],
            env=environment(DYNAMIX_PROBE=host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

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
    (folder / "cluster.yaml").write_text(CLUSTER.format(runs=folder / "runs", policy="static", comm="byteps"))
    (folder / "train.py").write_text(TRAIN.format(iterations=iterations))
    command = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", "cluster.yaml", "--", "python", "train.py"]
    process = subprocess.Popen(
        [*before, *command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
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
    assert told[0].startswith("event launcher: degraded: network metrics: eBPF: ")
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
        "from dynamix_ps.metrics.network.probe_client import ProbeSource\n"
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
