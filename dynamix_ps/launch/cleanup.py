"""What a run holds outside its run folder, and how it is released after any end. Standard library only."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.launch.shared_memory import remove_segments

_RECORD = "holdings.json"
_GROUP_TRIES = 40
_KILL_PATIENCE_S = 5.0
_LONGEST_SCRATCH = 80  # characters; a socket's whole path may have 107


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one run holds. Its processes have `run_id` in their environment; an empty `run_id` means no processes."""

    run_id: str
    shm_prefix: str
    scratch: str
    cgroups: tuple[str, ...] = ()
    launcher_pid: int = 0
    launcher_start: str = ""

    def save(self) -> None:
        """Write a record into the scratch folder, so that a later run can clean up after this one."""
        (Path(self.scratch) / _RECORD).write_text(self.to_json())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Holdings:
        """Raises ValueError or TypeError when the text is not such a record."""
        data = json.loads(text)
        return cls(**{**data, "cgroups": tuple(data["cgroups"])})


def make_scratch(run_id: str, sockets: int) -> Path:
    """Make a private folder with a short path, with one folder for sockets per worker in it."""
    scratch = scratch_path(run_id)
    scratch.mkdir(mode=0o700)
    for index in range(sockets):
        (scratch / f"w{index}").mkdir()
    return scratch


def scratch_path(run_id: str) -> Path:
    """The scratch folder of a run: in the temporary folder, or in /tmp if that path is too long."""
    path = Path(tempfile.gettempdir()) / f"dynamix-{run_id}"
    return path if len(str(path)) <= _LONGEST_SCRATCH else Path("/tmp") / path.name


def release(holdings: Holdings, grace_s: float = 3.0) -> None:
    """End what still runs; remove shared-memory segments, control groups and sockets. May be called twice."""
    end_processes(holdings.run_id, grace_s)
    for group in holdings.cgroups:
        _remove_group(Path(group))
    remove_segments(holdings.shm_prefix)
    shutil.rmtree(holdings.scratch, ignore_errors=True)


def processes_of(run_id: str) -> Iterator[int]:
    """Processes that have this run's id in their environment, except the caller."""
    mark = f"{variables.RUN_ID}={run_id}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and run_id and mark in _environment(int(entry)):
            yield int(entry)


def end_processes(run_id: str, grace_s: float) -> None:
    """TERM to all processes of the run, then KILL to those that still run after `grace_s`."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_PATIENCE_S)):
        for pid in processes_of(run_id):
            _signal(pid, number)
        deadline = time.monotonic() + patience_s
        while any(True for _ in processes_of(run_id)) and time.monotonic() < deadline:
            time.sleep(0.05)


def release_stale() -> list[str]:
    """Release what dead runs of this user still hold, whose launcher and reaper were killed; returns their run ids."""
    released = []
    for record in scratch_path("x").parent.glob(f"dynamix-*/{_RECORD}"):
        holdings = _read_record(record)
        if holdings is not None and start_of(holdings.launcher_pid) != holdings.launcher_start:
            release(holdings)
            released.append(holdings.run_id)
    return released


def start_of(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty if it is gone. With the pid this identifies a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _read_record(record: Path) -> Holdings | None:
    """The record, if it belongs to this user and names only what a run may hold; otherwise none."""
    try:
        if record.stat().st_uid != os.getuid():
            return None
        holdings = Holdings.from_json(record.read_text())
    except (OSError, ValueError, TypeError, KeyError):
        return None
    named = holdings.scratch == str(record.parent) == str(scratch_path(holdings.run_id))
    ours = re.fullmatch(r"[0-9a-f]{8,}", holdings.run_id) and holdings.shm_prefix == f"dynamix_{holdings.run_id}_"
    groups = all(Path(group).name.startswith(f"dynamix-{holdings.run_id}") for group in holdings.cgroups)
    return holdings if named and ours and groups else None


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or belongs to another user


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _remove_group(group: Path) -> None:
    """Kill all processes in a control group and remove it. Does nothing if the group is gone."""
    for _ in range(_GROUP_TRIES):
        try:
            for pid in (group / "cgroup.procs").read_text().split():
                _signal(int(pid), signal.SIGKILL)
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)  # the kernel needs a moment to remove ended processes
