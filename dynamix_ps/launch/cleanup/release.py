"""Releases what a run holds outside its run folder, after any end. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dynamix_ps.cgroups import hierarchies
from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.holdings import Holdings, abandoned_holdings
from dynamix_ps.launch.cleanup.shared_memory import remove_segments

_GROUP_TRIES = 40
_KILL_PATIENCE_S = 5.0


def release(holdings: Holdings, grace_s: float = 3.0) -> None:
    """End all processes of the run; remove its shared-memory segments, control groups and sockets. Idempotent."""
    end_processes(holdings.run_id, grace_s, holdings.host)
    for group in map(Path, holdings.cgroups):
        if is_group_of(group, holdings.run_id):
            _remove_group(group)
    remove_segments(holdings.shm_prefix)
    shutil.rmtree(holdings.scratch, ignore_errors=True)


def release_stale() -> list[str]:
    """Release what runs of this user still hold whose launcher and reaper were killed; returns their run ids."""
    released = []
    for holdings in abandoned_holdings():
        release(holdings)
        released.append(holdings.run_id)
    return released


def processes_of(run_id: str, host: str = "") -> Iterator[int]:
    """Processes that have this run's id in their environment, and the host's name if one is given, except the caller.

    For root these may be processes of other users, because a worker may change its user. No user can make this name a
    process of another user: it reads the environment of the process itself.
    """
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _belongs_to(int(entry), run_id, host):
            yield int(entry)


def end_processes(run_id: str, grace_s: float, host: str = "") -> None:
    """Send TERM to all processes of the run on this host, and KILL to those that still run after `grace_s`."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_PATIENCE_S)):
        for pid in processes_of(run_id, host):
            _signal(pid, number, lambda pid=pid: _belongs_to(pid, run_id, host))  # type: ignore[misc]
        deadline = time.monotonic() + patience_s
        while any(True for _ in processes_of(run_id, host)) and time.monotonic() < deadline:
            time.sleep(0.05)


def is_group_of(group: Path, run_id: str) -> bool:
    """Whether a run of this id can have made this control group: by its name, and in a mounted hierarchy."""
    real = Path(os.path.realpath(group))
    mounted = any(Path(os.path.realpath(one.root)) in real.parents for one in hierarchies())
    return mounted and re.fullmatch(rf"dynamix-{run_id}-w[0-9]+", real.name) is not None


def _belongs_to(pid: int, run_id: str, host: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or belongs to another user
    wanted = [f"{variables.RUN_ID}={run_id}"] + ([f"{variables.HOST}={host}"] if host else [])
    return bool(run_id) and all(entry.encode() in environ for entry in wanted)


def _signal(pid: int, number: signal.Signals, is_meant: Callable[[], bool]) -> None:
    """Signal a process if `is_meant` is true while a descriptor keeps its number from other processes."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_meant():
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _remove_group(group: Path) -> None:
    """Kill all processes in a control group and remove it. Does nothing if the group is gone."""

    def members() -> list[int]:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]

    for _ in range(_GROUP_TRIES):
        try:
            for pid in members():
                _signal(pid, signal.SIGKILL, lambda pid=pid: pid in members())  # type: ignore[misc]
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)  # the kernel needs a moment to remove ended processes
