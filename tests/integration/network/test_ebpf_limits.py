"""The eBPF collector at its limits: old kernels, full tables, missed ends, missing rights, and its own end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dynamix_ps.config import variables
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf import collector as ebpf
from dynamix_ps.metrics.network.ebpf import compiler
from dynamix_ps.metrics.network.ebpf.btf import Btf
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
from dynamix_ps.metrics.network.ebpf.compiler import STATE_CHANGES
from tests.integration.network.tcp_pairs import connect, listener, pair
from tests.launching import wait_for

pytestmark = pytest.mark.timeout(90)

PROGRAMS = len(STATE_CHANGES) + 4  # use of a connection (2), refresh, adopt


@pytest.fixture
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program from before is found."""
    monkeypatch.setenv(variables.CACHE, str(tmp_path / "cache"))


@pytest.mark.usefixtures("nothing_compiled")
def test_kernels_without_tracepoints_of_lengths(loaded: EbpfCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.3: accepted ends are noticed when they read."""
    has_tracepoint = Btf.has_tracepoint
    monkeypatch.setattr(Btf, "has_tracepoint", lambda btf, name: "length" not in name and has_tracepoint(btf, name))
    older = EbpfCollector()
    try:
        older.watch(os.getpid())
        with pair() as ends:
            ends.send(there=1234, back=56)
            dialled, accepted = ends.of(older.read())
            assert (dialled.bytes_out, accepted.bytes_in, accepted.bytes_out) == (1234, 1234, 56)
    finally:
        older.close()


@pytest.mark.usefixtures("nothing_compiled")
def test_a_kernel_without_tracepoints_is_refused(loaded: EbpfCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Btf, "has_tracepoint", lambda btf, name: False)
    with pytest.raises(SourceError, match="no tracepoint inet_sock_set_state and no tcp_rcv_space_adjust"):
        EbpfCollector()


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch, loaded: EbpfCollector) -> None:
    monkeypatch.setattr(ebpf, "_MAX_CONNECTIONS", 2)
    small = EbpfCollector()
    try:
        small.watch(os.getpid())
        with listener() as listening:
            pairs = [connect(listening) for _ in range(3)]
            for ends in pairs:
                ends.send(there=1, back=1)
            assert len(small.read()) == 2
            assert small.lost > 0
            for ends in pairs:
                ends.close()
    finally:
        small.close()


def test_too_many_processes_are_refused(monkeypatch: pytest.MonkeyPatch, loaded: EbpfCollector) -> None:
    monkeypatch.setattr(ebpf, "_MAX_PROCESSES", 1)
    small = EbpfCollector()
    try:
        small.watch(os.getpid())
        with pytest.raises(SourceError, match=r"process 1 cannot be watched \(1 are watched already\)"):
            small.watch(1)
    finally:
        small.close()


@pytest.mark.alone  # any new connection on this machine may get the socket
@pytest.mark.parametrize("blind_to_the_next", (True, False))
def test_a_missed_end_is_found_and_counted_as_lost(loaded: EbpfCollector, blind_to_the_next: bool) -> None:
    """Detached for a moment, it does not see that a connection closes and its socket becomes another one."""
    collector = EbpfCollector()
    try:
        collector.watch(os.getpid())
        with listener() as listening:
            ends = connect(listening)
            ends.send(there=30, back=4)
            collector.read()
            _detach(collector, STATE_CHANGES)
            ends.close()
            if blind_to_the_next:
                later = connect(listening)
            _attach(collector, STATE_CHANGES)
            if not blind_to_the_next:
                later = connect(listening)
            later.send(there=500, back=0)
            wait_for(lambda: _closed(collector) == [4, 30], "ends that are found")
            assert collector.lost == 2
            later.send(there=1, back=0)
            dialled, accepted = later.of(collector.read())
            assert (dialled.bytes_out, accepted.bytes_in) == (501, 501)
            later.close()
    finally:
        collector.close()


@pytest.mark.alone  # any new connection on this machine may get the socket
def test_a_missed_end_loses_nothing_while_its_socket_is_no_other_one(loaded: EbpfCollector) -> None:
    """As when it comes as an interrupt of a process that the kernel hides from all eBPF programs."""
    collector = EbpfCollector()
    try:
        collector.watch(os.getpid())
        with pair() as ends:
            ends.send(there=30, back=4)
            collector.read()
            ends.send(there=500, back=60)
            _detach(collector, STATE_CHANGES)
        found: list[int] = []  # one look may find the one, and the next one the other
        wait_for(lambda: found.extend(_closed(collector)) or sorted(found) == [64, 530], "ends that are found")
        assert collector.lost == 0
    finally:
        collector.close()


def _closed(collector: EbpfCollector) -> list[int]:
    """Bytes sent of the connections that ended."""
    return sorted(each.bytes_out for each in collector.read() if each.closed)


@pytest.mark.alone  # traffic on this CPU may keep the kernel from running the one that is left
@pytest.mark.parametrize("left", STATE_CHANGES)
def test_one_of_the_programs_that_see_an_end_is_enough(loaded: EbpfCollector, left: str) -> None:
    """The kernel leaves one out while it is running on that CPU already."""
    collector = EbpfCollector()
    try:
        _detach(collector, [name for name in STATE_CHANGES if name != left])
        collector.watch(os.getpid())
        with listener() as listening:
            for size in range(1, 20):
                ends = connect(listening)
                ends.send(there=size, back=0)
                ends.close()
        seen = sorted(each.bytes_out for each in collector.read() if each.closed)
        assert seen == [0] * 19 + list(range(1, 20))
        assert collector.lost == 0
    finally:
        collector.close()


def _detach(collector: EbpfCollector, functions: Sequence[str]) -> None:
    for function in functions:
        collector._program.detach(function)


def _attach(collector: EbpfCollector, functions: Sequence[str]) -> None:
    for function in functions:
        collector._program.attach(function, "inet_sock_set_state")


_HOLDER = """
import os, sys, time
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
collector = EbpfCollector()
collector.watch(os.getpid())
print("loaded", flush=True)
sys.stdin.read()
"""


def test_nothing_stays_in_the_kernel_after_a_kill(loaded: EbpfCollector) -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout and holder.stdout.readline() == b"loaded\n"
        held = _programs_of(holder.pid)
        assert len(held) == PROGRAMS
        assert held <= _programs()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    _wait_until_gone(held)


def test_nothing_stays_in_the_kernel_after_close(loaded: EbpfCollector) -> None:
    before = _programs_of(os.getpid())
    collector = EbpfCollector()
    held = _programs_of(os.getpid()) - before
    assert len(held) == PROGRAMS
    collector.close()
    _wait_until_gone(held)


_IN_NAMESPACE = """
import os, socket
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
collector = EbpfCollector()
collector.watch(os.getpid())
listening = socket.create_server(("127.0.0.1", 0))
end = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
end.sendall(b"x" * 1000)
accepted.recv(1000, socket.MSG_WAITALL)
print(os.getpid(), sorted((each.pid, each.bytes_out, each.bytes_in) for each in collector.read()))
"""


def test_works_in_a_pid_namespace(loaded: EbpfCollector) -> None:
    """As in a container: pids are those of the namespace."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _IN_NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip(f"pid namespaces: {done.stderr.strip()}")
    assert done.stdout.strip() == "1 [(1, 0, 1000), (1, 1000, 0)]", done.stderr


_UNPRIVILEGED = """
import os
from dynamix_ps.metrics.network.ebpf import collector as ebpf
os.setuid(65534)
try:
    ebpf.EbpfCollector()
except ebpf.SourceError as error:
    print(error, "|", error.fix)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_permission_the_reason_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", _UNPRIVILEGED], capture_output=True, text=True, check=True)
    expected = "user 65534 lacks CAP_BPF and CAP_PERFMON | start the probe as root beforehand: sudo dynamix probe serve"
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("int on_state(void *ctx) { return nonsense; }", "nonsense"),
        ("int on_state(u64 *ctx) { return *(int *)ctx[0]; }", "on_state"),
    ],
    ids=["compiler", "verifier"],
)
def test_errors_of_compiler_and_verifier_become_the_reason(
    loaded: EbpfCollector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    program: str,
    reason: str,
) -> None:
    file = tmp_path / "program.c"
    file.write_text(program)
    monkeypatch.setattr(compiler, "SOURCE", file)
    with pytest.raises(SourceError, match=reason) as error:
        EbpfCollector()
    assert platform.release() in error.value.fix
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("nothing_compiled")
def test_loading_prints_nothing_and_the_second_time_needs_no_compiler(loaded: EbpfCollector) -> None:
    done = subprocess.run([sys.executable, "-c", _HOLDER], input=b"", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"loaded\n", b"")
    without = "from dynamix_ps.metrics.network.ebpf import compiler; compiler.load_bcc = None\n" + _HOLDER
    done = subprocess.run([sys.executable, "-c", without], input=b"", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"loaded\n", b"")


def _programs() -> set[int]:
    """Ids of all BPF programs in the kernel: bpf(BPF_PROG_GET_NEXT_ID)."""
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    attributes = (ctypes.c_uint32 * 4)()  # start, next
    found: set[int] = set()
    while call(number, 11, ctypes.byref(attributes), ctypes.sizeof(attributes)) == 0:
        found.add(attributes[1])
        attributes[0] = attributes[1]
    return found


def _programs_of(pid: int) -> set[int]:
    """Those the process holds descriptors of."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one by which this folder was listed
            lines = file.read_text().splitlines()
            found.update(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))
    return found


def _wait_until_gone(held: set[int]) -> None:
    """The kernel frees programs a moment after their last descriptor is closed."""
    for _ in itertools.takewhile(lambda _: held & _programs(), range(500)):
        time.sleep(0.01)
    assert not held & _programs()
