"""The cores of each local process of a worker, if BYTEPS_NUMA_ON=1 asks for binding."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamix_ps.errors import UsageError

CORES = "BYTEPS_VISIBLE_CPU_CORES"  # as in bpslaunch: `1,4-5:6-9` gives process 0 cores 1, 4, 5 and process 1 6 to 9
BLACKLIST = "BYTEPS_CPU_BLACKLIST"


def core_sets(environ: Mapping[str, str], local_size: int, nodes: Sequence[Sequence[int]]) -> list[set[int]]:
    """One set of cores per local process; empty: the process is not bound.

    `nodes` are the usable cores by NUMA node. Without BYTEPS_VISIBLE_CPU_CORES each process gets an equal run of
    neighbouring cores. (bpslaunch gives more cores to the last process, which does the network's work; equal runs are
    easier to predict.)

    Raises:
        UsageError: a variable cannot be read, or has cores for too few processes.
    """
    blacklist = _numbers(BLACKLIST, environ.get(BLACKLIST, "").replace("-1", ""))
    asked = environ.get(CORES, "").strip()
    if asked:
        sets = [_numbers(CORES, part) - blacklist for part in asked.split(":")]
        if len(sets) < local_size:
            raise UsageError(f"{CORES}={asked!r} names cores for {len(sets)} process(es), there are {local_size}")
        return sets[:local_size]
    cores = [core for node in nodes for core in node if core not in blacklist]
    each = len(cores) // local_size
    return [set(cores[index * each : (index + 1) * each]) for index in range(local_size)]


def numa_nodes(base: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """The usable cores of this machine by NUMA node; one node where the system shows no nodes."""
    usable = os.sched_getaffinity(0)
    nodes = []
    for node in sorted(base.glob("node[0-9]*")):
        cores = {int(cpu.name[3:]) for cpu in node.glob("cpu[0-9]*")}
        if cores & usable:
            nodes.append(sorted(cores & usable))
    return nodes or [sorted(usable)]


def _numbers(name: str, text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if match is None:
            raise UsageError(f"{name}: cannot read {part!r}; expected cores such as 0,2 or 4-7")
        first, last = match.groups()
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
