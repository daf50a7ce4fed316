"""The nodes of a Slurm job, from its environment variables. Pure.

Node lists are compressed (`n[01-03,07],login`), and so are numbers per node (`2(x3),1`). A heterogeneous job has a
variable of each kind per component, `..._HET_GROUP_0` and so on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dynamix_ps.config.schema import MAX_HOSTS
from dynamix_ps.errors import EnvironmentNotReady

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # of a node list: no comma outside of brackets
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node of a job.

    Attributes:
        tasks: tasks that the job asked for on the node; None where it asked for no number of tasks.
        component: component of a heterogeneous job, from 0; None for a job of another kind.
    """

    name: str
    tasks: int | None = None
    component: int | None = None


def job_nodes(environ: Mapping[str, str]) -> tuple[SlurmNode, ...]:
    """The nodes of the job around this process, in Slurm's order; none outside of a job.

    Raises:
        EnvironmentNotReady: a variable has a form that Slurm does not write, or a node is in two components.
    """
    if not environ.get("SLURM_JOB_ID"):
        return ()
    components = environ.get("SLURM_HET_SIZE", "")
    if components.isdecimal() and len(components) < 6:
        nodes = [node for one in range(int(components)) for node in _nodes(environ, f"_HET_GROUP_{one}", one)]
    else:
        nodes = list(_nodes(environ, "", None))
    if len(nodes) > MAX_HOSTS:
        raise EnvironmentNotReady(f"the Slurm job has {len(nodes)} nodes; at most {MAX_HOSTS} can take part")
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise EnvironmentNotReady(
                f"node {node.name} is in two components of the Slurm job; ask for nodes that differ (--exclusive)"
            )
        seen.add(node.name)
    return tuple(nodes)


def _nodes(environ: Mapping[str, str], suffix: str, component: int | None) -> Iterator[SlurmNode]:
    list_name, tasks_name = f"SLURM_JOB_NODELIST{suffix}", f"SLURM_TASKS_PER_NODE{suffix}"
    names = tuple(expand_nodes(environ.get(list_name, ""), list_name))
    tasks: tuple[int | None, ...] = (None,) * len(names)
    # Without a number in the request, Slurm writes down how many would fit.
    if any(environ.get(f"{name}{suffix}") for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")):
        tasks = tuple(expand_counts(environ.get(tasks_name, ""), tasks_name))
        if len(tasks) != len(names):
            raise EnvironmentNotReady(
                f"{list_name} names {len(names)} nodes and {tasks_name} {len(tasks)} (got {environ.get(tasks_name)!r})"
            )
    for name, count in zip(names, tasks, strict=True):
        yield SlurmNode(name, count, component)


def expand_nodes(text: str, variable: str = "node list") -> Iterator[str]:
    """`n[01-03,07],login` as n01, n02, n03, n07, login.

    Raises:
        EnvironmentNotReady: the text is no list of nodes; the message names `variable`.
    """
    parts = _PART.findall(text)
    if not parts or ",".join(parts) != text:
        raise EnvironmentNotReady(f"{variable} is {text!r}; expected nodes as Slurm writes them, such as n[01-03,07]")
    for part in parts:
        pieces = [[plain] if plain else list(_numbers(inner, text, variable)) for inner, plain in _PIECE.findall(part)]
        yield from map("".join, itertools.product(*pieces))


def _numbers(inner: str, text: str, variable: str) -> Iterator[str]:
    """`01-03,07`: each number has as many digits as the first of its range."""
    for word in inner.split(","):
        found = _RANGE.fullmatch(word)
        low, high = (found.group(1), found.group(2) or found.group(1)) if found else ("1", "0")
        if not int(low) <= int(high) < int(low) + MAX_HOSTS * 64:
            raise EnvironmentNotReady(f"{variable} is {text!r}: {word!r} is no range of numbers, such as 01-03")
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}}"


def expand_counts(text: str, variable: str = "counts") -> Iterator[int]:
    """`2(x3),1` as 2, 2, 2, 1. Raises EnvironmentNotReady."""
    for word in text.split(","):
        found = _COUNT.fullmatch(word)
        if found is None:
            raise EnvironmentNotReady(f"{variable} is {text!r}; expected numbers as Slurm writes them, such as 2(x3),1")
        yield from itertools.repeat(int(found.group(1)), int(found.group(2) or 1))
