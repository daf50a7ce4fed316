"""Control groups around this process, version 1 and 2: their folders and limits. Read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OWN_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy of control groups."""

    version: int  # 1 or 2
    root: Path
    controllers: frozenset[str]  # version 1: the controllers of the mount; version 2: not used

    def has(self, controller: str) -> bool:
        return self.version == 2 or controller in self.controllers

    def chain(self, own: dict[str, str], controller: str) -> list[Path]:
        """A process's group and the groups around it, innermost first.

        `own` is the result of `own_groups`. Containers hide groups: groups without a folder are left out, the root is
        always included.
        """
        here = self.root / own.get(controller if self.version == 1 else "", "/").lstrip("/")
        around = [here, *(parent for parent in here.parents if self.root in parent.parents)]
        return [path for path in around if path != self.root and path.is_dir()] + [self.root]


def hierarchies(proc: Path = OWN_PROC) -> tuple[Hierarchy, ...]:
    """All mounted hierarchies."""
    found = []
    for line in (proc / "mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            root = Path(mount.replace("\\040", " "))
            found.append(Hierarchy(1 if kind == "cgroup" else 2, root, frozenset(options.split(","))))
    return tuple(found)


def own_groups(proc: Path = OWN_PROC) -> dict[str, str]:
    """Path of a process's group by controller; the key of version 2 is empty."""
    groups = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def cpu_chains(proc: Path = OWN_PROC) -> Iterator[tuple[int, list[Path]]]:
    """(version, own group and the groups around it, innermost first) of every hierarchy that may limit CPU time."""
    own = own_groups(proc)
    for hierarchy in hierarchies(proc):
        if hierarchy.has("cpu"):
            yield hierarchy.version, hierarchy.chain(own, "cpu")


def quota_cores(version: int, group: Path) -> float | None:
    """Cores that a group may use; None without a limit."""
    if version == 1:
        found = words(group / "cpu.cfs_quota_us") + words(group / "cpu.cfs_period_us")
    else:
        found = words(group / "cpu.max")
    if len(found) != 2 or found[0] in ("max", "-1"):
        return None
    return int(found[0]) / int(found[1])


def throttled_s(version: int, group: Path) -> float | None:
    """Seconds for which a group was throttled so far, summed over cores; None if the kernel gives no value."""
    name, unit_s = ("throttled_time", 1e-9) if version == 1 else ("throttled_usec", 1e-6)
    value = dict(pairs(group / "cpu.stat")).get(name)
    return None if value is None else value * unit_s


def memory_limit(version: int, group: Path) -> int | None:
    """Bytes that a group may use; None without a limit."""
    found = words(group / ("memory.limit_in_bytes" if version == 1 else "memory.max"))
    return int(found[0]) if found and found[0] != "max" else None


def memory_in_use(version: int, group: Path) -> int | None:
    """Bytes that a group uses, without inactive file pages, which the kernel frees first; None if unknown."""
    found = words(group / ("memory.usage_in_bytes" if version == 1 else "memory.current"))
    if not found:
        return None
    idle = dict(pairs(group / "memory.stat")).get("total_inactive_file" if version == 1 else "inactive_file", 0)
    return max(0, int(found[0]) - idle)


def available_cores(proc: Path = OWN_PROC) -> float:
    """Cores that this process may use: the smaller of its affinity and the smallest quota of a group around it."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for version, chain in cpu_chains(proc):
        limits += [cores for group in chain if (cores := quota_cores(version, group)) is not None]
    return min(limits)


def available_memory_bytes(proc: Path = OWN_PROC) -> int:
    """Memory that this process can still get: what is left on the machine or in a group around it, if that is less."""
    meminfo = (proc.parent / "meminfo").read_text().split()
    left = [1024 * int(meminfo[meminfo.index("MemAvailable:") + 1])]
    own = own_groups(proc)
    for hierarchy in hierarchies(proc):
        for group in hierarchy.chain(own, "memory") if hierarchy.has("memory") else ():
            limit, in_use = memory_limit(hierarchy.version, group), memory_in_use(hierarchy.version, group)
            if limit is not None and in_use is not None:
                left.append(max(0, limit - in_use))
    return min(left)


def words(file: Path) -> list[str]:
    """The words of a file; empty if it cannot be read."""
    try:
        return file.read_text().split()
    except OSError:
        return []


def pairs(file: Path) -> Iterator[tuple[str, int]]:
    """The lines `name number` of a file."""
    found = words(file)
    return zip(found[::2], map(int, found[1::2]), strict=False)
