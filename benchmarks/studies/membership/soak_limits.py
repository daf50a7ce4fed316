"""What roles of the soak run short of: room on a disk, memory, and an hour on the clock. Needs root."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.studies.membership.soak_place import clock_file
from benchmarks.studies.membership.soak_site import Event, Site
from benchmarks.testbed.names import NAMESPACES
from benchmarks.testbed.small_disk import fill

DISK_BYTES = 64 << 20
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # version 1
_LIMIT_BYTES = 4 << 20
_GONE_S = 5.0


def fill_disk(site: Site, event: Event) -> None:
    site.filler = fill(site.run.path.parent)


def free_disk(site: Site, event: Event) -> None:
    assert site.filler is not None
    site.filler.unlink()


def forbid_writing(site: Site, event: Event) -> None:
    """The coordinator can write to no file, and neither can the one that is started in its place."""
    with suppress(psutil.NoSuchProcess):  # it has just ended
        told = psutil.Process(event.pid)
        is_arbitrator = any("dynamix_ps.arbitrator" in word for word in told.cmdline())
        site.watch = psutil.Process(told.ppid()) if is_arbitrator else told  # in a ring both have the name of the role
        _limit_files(site.watch, 0)


def allow_writing(site: Site, event: Event) -> None:
    with suppress(psutil.NoSuchProcess):
        if site.watch is not None:
            _limit_files(site.watch, resource.RLIM_INFINITY)


def _limit_files(watch: psutil.Process, size_bytes: int) -> None:
    for process in (watch, *watch.children()):
        process.rlimit(psutil.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def take_memory(site: Site, event: Event) -> None:
    """Another process of the server's control group takes all that the group may use.

    The kernel ends the process with most memory, which is the server, and then the other one.
    """
    group = _group_of(site.folder)
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(_LIMIT_BYTES))
    with suppress(ProcessLookupError):  # it has just ended
        (group / "cgroup.procs").write_text(str(event.pid))
    takes = f"echo $$ > {group}/cgroup.procs; exec tail /dev/zero"
    site.taker = subprocess.Popen(["sh", "-c", takes], stdin=subprocess.DEVNULL)


def give_memory(site: Site, event: Event) -> None:
    assert site.taker is not None
    site.taker.kill()
    site.taker.wait()
    deadline_s = time.monotonic() + _GONE_S
    while _group_of(site.folder).exists() and time.monotonic() < deadline_s:
        try:
            _group_of(site.folder).rmdir()
        except OSError:
            time.sleep(0.01)


def turn_back(site: Site, event: Event) -> None:
    """`time.time` of a worker goes back by an hour (soak_worker.py)."""
    clock_file(site.folder, event.slot).touch()


def turn_on(site: Site, event: Event) -> None:
    clock_file(site.folder, event.slot).unlink()


def left_on_machine(folder: Path) -> list[str]:
    """Control groups, network namespaces and mounts of the soak in this folder, and of this process, that are there."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    bed = f"dxbed.*.{os.getpid()}.*"
    return [*map(str, (*MEMORY_GROUPS.glob(f"{_group_of(folder).name}*"), *NAMESPACES.glob(bed))), *mounts]


def _group_of(folder: Path) -> Path:
    return MEMORY_GROUPS / folder.name
