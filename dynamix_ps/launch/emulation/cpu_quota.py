"""CPU quotas by control groups, version 1 and 2: one group per worker, below or beside the launcher's own group.

This module makes groups; dynamix_ps/cgroups.py reads them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.cgroups import OWN_PROC, cpu_chains, words

# With the kernel's default of 100 ms a throttled receiver looks like a network fault (measured: stalls of
# 77 ms at a quarter core); with 20 ms the stalls stay below 20 ms.
PERIOD_US = 20_000
MIN_QUOTA_US = 1_000  # the kernel refuses less
MAX_PERIOD_US = 1_000_000
GROUP_PREFIX = "dynamix-"


@dataclass(frozen=True, slots=True)
class CpuController:
    """Where groups with a CPU quota can be made, or the reason why none can."""

    version: int  # 1 or 2; 0: there is none
    parent: Path
    problem: str = ""

    @property
    def usable(self) -> bool:
        return not self.problem

    def create(self, name: str) -> Path:
        """Make a group without a limit. Raises OSError."""
        group = self.parent / name
        group.mkdir()
        return group

    def limit(self, group: Path, cores: float) -> None:
        """Let the group use at most `cores` cores; on a busy machine its share is in proportion to them.

        Raises OSError.
        """
        quota_us, period_us = quota(cores)
        if self.version == 1:
            (group / "cpu.cfs_period_us").write_text(f"{period_us}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota_us}")
            (group / "cpu.shares").write_text(f"{max(2, round(1024 * cores))}")
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
            (group / "cpu.weight").write_text(f"{min(10_000, max(1, round(100 * cores)))}")


def quota(cores: float) -> tuple[int, int]:
    """(quota, period) in microseconds; the period exceeds PERIOD_US only where the quota would be too small."""
    period_us = min(MAX_PERIOD_US, max(PERIOD_US, round(MIN_QUOTA_US / cores)))
    return max(MIN_QUOTA_US, round(cores * period_us)), period_us


def find_controller(proc: Path = OWN_PROC, probe: bool = True) -> CpuController:
    """The first place where a process can enter a group with a limit. With `probe` it tries a temporary group."""
    problems = []
    for version, parent in _candidates(proc):
        controller = CpuController(version, parent)
        problem = _try_out(controller) if probe else ""
        if not problem:
            return controller
        problems.append(problem)
    return CpuController(0, Path(), next(iter(problems), "no cgroup file system with a cpu controller is mounted"))


def _candidates(proc: Path) -> Iterator[tuple[int, Path]]:
    """Version 1: the own group. Version 2 allows no limit below a group with processes: groups around it."""
    for version, chain in cpu_chains(proc):
        if version == 1:
            yield 1, chain[0]
        else:
            yield from ((2, path) for path in chain if "cpu" in words(path / "cgroup.subtree_control"))


def _try_out(controller: CpuController) -> str:
    """Put a process into a group with a limit. Returns the problem; empty: none."""
    try:
        group = controller.create(f"{GROUP_PREFIX}probe-{os.getpid()}")
    except OSError as error:
        return f"{controller.parent}: {error.strerror}"
    sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        controller.limit(group, 1.0)
        (group / "cgroup.procs").write_text(f"{sleeper.pid}")
    except OSError as error:
        return f"{error.filename or group}: {error.strerror}"
    finally:
        sleeper.communicate()
        group.rmdir()
    return ""
