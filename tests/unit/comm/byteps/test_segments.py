"""Memory that processes of one host share: who may open it, and what is left of it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from dynamix_ps.cgroups import available_memory_bytes
from dynamix_ps.comm.byteps import segments
from dynamix_ps.comm.byteps.segments import ANNOUNCEMENT_BYTES, DATA_OFFSET_BYTES, Announcement, Segment, SegmentError
from tests.other_user import NOBODY, as_another_user, needs_another_user

LIMIT_S = 30
ROOT = os.getuid() == 0
REPOSITORY = Path(__file__).parents[3]

# Creates a segment of argv[1] bytes that holds 7, prints its announcement, and waits.
CREATOR = """
import sys
from dynamix_ps.comm.byteps.segments import Segment
segment = Segment.create(int(sys.argv[1]))
segment.data[:] = 7
print(segment.announcement().hex(), flush=True)
sys.stdin.read()
"""


def python(code: str, *arguments: str, before: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """Output of a process that ends well."""
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return output


@contextlib.contextmanager
def creator(size_bytes: int) -> Iterator[tuple[subprocess.Popen[str], bytes]]:
    """Another process with a segment, and its announcement."""
    process = python(CREATOR, str(size_bytes))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=LIMIT_S)
        yield process, bytes.fromhex(line)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(10_000)
    yield made
    made.close()


def changed(segment: Segment, **fields: Any) -> bytes:
    return replace(Announcement.unpack(segment.announcement()), **fields).pack()


def users_of(inode: int) -> list[int]:
    """Processes that have a memfd open or mapped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        used: list[int] = []
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text().splitlines()
            used += [int(line.split()[4]) for line in lines if "/memfd:dynamix" in line]
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    used.append(fd.stat().st_ino)
        if inode in used:
            found.append(int(process.name))
    return sorted(found)


def test_a_new_segment_is_zeroed_and_page_aligned(segment: Segment) -> None:
    assert (segment.size_bytes, segment.data.size, segment.data.any()) == (10_000, 10_000, False)
    assert segment.address % mmap.PAGESIZE == 0
    assert segment.address == segment.data.ctypes.data
    assert len(segment.announcement()) == ANNOUNCEMENT_BYTES
    found = os.stat(f"/proc/self/fd/{Announcement.unpack(segment.announcement()).fd}")
    assert (found.st_mode & 0o777, found.st_uid, found.st_nlink) == (0o600, os.geteuid(), 0)


def test_two_processes_see_the_same_memory() -> None:
    with creator(1 << 20) as (_, announcement):
        one, two = Segment.open(announcement), Segment.open(announcement)
        assert np.all(one.data == 7)
        one.data[-1] = 9
        assert two.data[-1] == 9
        assert one.address != two.address
        with pytest.raises(ValueError, match="only the process that created"):
            one.announcement()
        one.close()
        two.close()


def test_memory_of_a_closed_segment_lives_as_long_as_arrays_of_it(segment: Segment) -> None:
    floats = segment.data.view(np.float32)
    inode = os.fstat(Announcement.unpack(segment.announcement()).fd).st_ino
    segment.close()
    segment.close()
    floats += 1
    assert floats.sum() == 2_500
    assert (segment.address, segment.data.size) == (0, 0)
    with pytest.raises(ValueError, match="before it closes it"):
        segment.announcement()
    assert users_of(inode) == [os.getpid()]
    del floats
    assert users_of(inode) == []


def test_memory_outlives_its_killed_creator_and_nothing_is_left_in_the_end() -> None:
    with creator(1 << 20) as (process, announcement):
        inode = os.stat(f"/proc/{process.pid}/fd/{Announcement.unpack(announcement).fd}").st_ino
        opened = Segment.open(announcement)
        assert users_of(inode) == sorted([os.getpid(), process.pid])
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        opened.data[:2] = 1
        assert opened.data[:3].tolist() == [1, 1, 7]
        assert users_of(inode) == [os.getpid()]
        with pytest.raises(SegmentError, match=r"cannot open /proc/\d+/fd/\d+: No such file or directory"):
            Segment.open(announcement)
        opened.close()
        assert users_of(inode) == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("boot", UUID(int=1), "has boot 00000000-0000-0000-0000-000000000001, this process has"),
        ("network_namespace", 5, "has network namespace 5, this process has"),
        ("pid_namespace", 5, "has pid namespace 5, this process has"),
        ("user", 12345, "has user 12345, this process has"),
        ("pid", 2**22 + 1, "cannot open /proc/4194305/fd/[0-9]+: No such file"),
        ("fd", 99_999, "cannot open /proc/[0-9]+/fd/99999: No such file"),
        ("size_bytes", 20_000, "it has 10000 bytes of data, expected 20000"),
        ("nonce", bytes(16), "its random number is not the announced one"),
    ],
)
def test_what_differs_is_named(segment: Segment, field: str, value: Any, problem: str) -> None:
    with pytest.raises(SegmentError, match=problem) as caught:
        Segment.open(changed(segment, **{field: value}))
    assert "\nNext: " in str(caught.value)


def test_an_announcement_of_another_length_is_refused(segment: Segment) -> None:
    with pytest.raises(SegmentError, match=f"got {ANNOUNCEMENT_BYTES - 1} bytes, expected {ANNOUNCEMENT_BYTES}"):
        Segment.open(segment.announcement()[:-1])


def test_a_file_that_can_shrink_is_refused(segment: Segment) -> None:
    nonce = Announcement.unpack(segment.announcement()).nonce
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.write(fd, nonce)
    os.ftruncate(fd, DATA_OFFSET_BYTES + segment.size_bytes)
    with pytest.raises(SegmentError, match="its size is not sealed"):
        Segment.open(changed(segment, fd=fd))
    os.close(fd)
    with pytest.raises(PermissionError):
        os.ftruncate(Announcement.unpack(segment.announcement()).fd, 0)


def test_without_proc_the_reason_is_told(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(segments.Path, "read_text", refuse)
    with pytest.raises(SegmentError, match="cannot read /proc/sys/kernel/random/boot_id: Permission denied"):
        segment.announcement()


@needs_another_user
def test_another_user_cannot_open_a_segment(segment: Segment) -> None:
    announcement, forged = segment.announcement(), changed(segment, user=NOBODY.pw_uid)

    def attack() -> None:
        with pytest.raises(SegmentError, match="has user 0, this process has"):
            Segment.open(announcement)
        with pytest.raises(SegmentError, match=r"cannot open .*: Permission denied"):
            Segment.open(forged)

    as_another_user(attack)


def in_a_child(action: Callable[[], None]) -> None:
    """Run in a forked process; fails if it raises or takes too long."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(LIMIT_S)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_shares_the_memory_and_announces_it_as_its_own(segment: Segment) -> None:
    def write() -> None:
        segment.data[0] = 5
        assert Announcement.unpack(segment.announcement()).pid == os.getpid()
        assert Segment.open(segment.announcement()).data[0] == 5
        segment.close()

    in_a_child(write)
    assert segment.data[0] == 5
    Segment.open(segment.announcement()).close()


def test_a_started_program_does_not_get_the_descriptor(segment: Segment) -> None:
    opened = Segment.open(segment.announcement())
    with subprocess.Popen(["ls", "-l", "/proc/self/fd"], stdout=subprocess.PIPE, text=True, close_fds=False) as listing:
        listed = listing.communicate(timeout=LIMIT_S)[0]
    assert "/dev/null" in listed or "pipe" in listed
    assert "memfd" not in listed
    opened.close()


@pytest.mark.skipif(not ROOT, reason="only root can make namespaces")
def test_a_small_dev_shm_does_not_matter() -> None:
    code = (
        "import os; from dynamix_ps.comm.byteps.segments import Segment; space = os.statvfs('/dev/shm');"
        "assert space.f_blocks * space.f_frsize == 65536; segment = Segment.create(1 << 22); segment.data[:] = 3;"
        "print(Segment.open(segment.announcement()).data.sum())"
    )
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    process = python(code, before=("unshare", "--mount", "sh", "-c", mount, "sh"))
    assert finished(process).strip() == str(3 << 22)


@pytest.mark.skipif(not ROOT, reason="only root can make namespaces")
@pytest.mark.parametrize(
    ("flags", "problem"), [(("--net",), "network namespace"), (("--pid", "--fork", "--mount-proc"), "pid namespace")]
)
def test_a_process_in_another_namespace_is_told_so(segment: Segment, flags: tuple[str, ...], problem: str) -> None:
    code = "import sys; from dynamix_ps.comm.byteps.segments import Segment; Segment.open(bytes.fromhex(sys.argv[1]))"
    process = python(code, segment.announcement().hex(), before=("unshare", *flags))
    assert f"has {problem} " in process.communicate(timeout=LIMIT_S)[1]


def test_a_lack_of_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(segments, "available_memory_bytes", lambda: 12_287)
        with pytest.raises(SegmentError, match="12288 bytes wanted, 12287 are left on this machine"):
            Segment.create(8192)

    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SegmentError, match=r"cannot reserve 4096 bytes: .*No space left on device"):
        Segment.create(4096)
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ValueError, match="got 0 bytes"):
        Segment.create(0)


def memory_group() -> Path | None:
    """A new control group that limits memory to 64 MB; None where this process may not make one."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"dynamix-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / file).write_text(str(64 << 20))
                return group
            except OSError:
                group.rmdir()
    return None


def test_the_limit_of_a_control_group_is_an_error_and_does_not_kill() -> None:
    if (group := memory_group()) is None:
        pytest.skip("this process may not make control groups")
    code = (
        "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()));"
        "from dynamix_ps.comm.byteps.segments import Segment, SegmentError; Segment.create(1 << 20)\n"
        "try: Segment.create(256 << 20)\n"
        "except SegmentError as error: print(error)"
    )
    try:
        assert "are left on this machine or in this control group" in finished(python(code, str(group)))
    finally:
        group.rmdir()


def test_memory_left_is_that_of_the_tightest_group(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    (groups / "job" / "role").mkdir(parents=True)
    process = tmp_path / "proc" / "self"
    process.mkdir(parents=True)
    (process.parent / "meminfo").write_text(
        "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\nHugePages_Total: 0\n"
    )
    (process / "mounts").write_text(f"cgroup2 {groups} cgroup2 rw 0 0\n")
    (process / "cgroup").write_text("0::/job/role\n")
    assert available_memory_bytes(process) == 800 * 1024
    for group, limit, used in (("job", "100000", "90000"), ("job/role", "max", "50000")):
        (groups / group / "memory.max").write_text(limit)
        (groups / group / "memory.current").write_text(used)
    assert available_memory_bytes(process) == 10_000
    (groups / "job" / "memory.current").write_text("200000")
    assert available_memory_bytes(process) == 0
