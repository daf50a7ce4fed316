"""A monitor with a network probe: it continues through every fault of the probe, reports it once, and recovers."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.metrics.network.connection import endpoint
from dynamix_ps.metrics.network.meter import Traffic, rates
from dynamix_ps.metrics.network.monitor import FIRST_RETRY_S, LONGEST_RETRY_S, NetworkMonitor
from dynamix_ps.metrics.network.probe.client import ProbeSource
from tests.integration.network.probe_needs import POWERLESS, needs_ebpf, needs_setpriv
from tests.launching import ROOT, environment, read_until, wait_for
from tests.probes import false_probe, probe_process

pytestmark = pytest.mark.timeout(120)

REAL = "dynamix_ps.metrics.network.probe.process"
UNBOUNDED_S = 5.0  # a reading is to take half a second; this is for a machine that is busy with other things


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
        "from tests.integration.network.test_network_probe import Pump\n"
        "from dynamix_ps.metrics.network.probe.client import ProbeSource\n"
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
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(Path(tempfile.gettempdir()) / f"pytest-of-{getpass.getuser()}"):
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
