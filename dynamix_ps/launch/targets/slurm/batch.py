"""The batch script with which Slurm starts `dynamix launch`. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from dynamix_ps.config.resolve import with_places
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.roles.plan import cpus_per_worker, hosts_with_roles
from dynamix_ps.launch.targets.slurm.nodes import expand_nodes
from dynamix_ps.launch.targets.slurm.options import by_option

NOTICE_S = 60  # before the time limit: enough for the present iteration and a checkpoint
BETWEEN = ":"  # components of a heterogeneous job, as on the command line of sbatch

_JOB_NAME, _SIGNAL = ("-J", "--job-name"), ("--signal",)
_NODES, _NODE_LIST = ("-N", "--nodes"), ("-w", "--nodelist")
_TASKS, _TASKS_PER_NODE = ("-n", "--ntasks"), ("--ntasks-per-node", "--tasks-per-node")
_CPUS = ("-c", "--cpus-per-task", "--cpus-per-gpu", "--exclusive")


def batch_script(config: Config, options: Sequence[str], launch: Sequence[str]) -> str:
    """The batch script. The cluster file decides what the options leave open.

    Each worker is a task. By default it has a node of its own, or its host of `cluster.hosts`; one CPU, or as many as
    `env:` sets in OMP_NUM_THREADS; and one more CPU where servers run.

    Args:
        config: the configuration of the job.
        options: options of sbatch; for a heterogeneous job the options of its components, with ":" in between.
        launch: the command line that launches the job.

    Raises:
        UsageError: a word is no option, or the options ask for several nodes with fewer tasks than workers.
    """
    components = list(_components(options))
    lines = ["#!/bin/sh"]
    for index, (own, defaults) in enumerate(zip(components, _defaults(config, components), strict=True)):
        lines += ["#SBATCH hetjob"] * (index > 0)
        lines += [f"#SBATCH {option}" for option in defaults]
        lines += [f"#SBATCH {shlex.join(words)}" for words in by_option(own)]
    # exec: so that the launcher gets the signals for the batch script, and ends the run in order.
    return "\n".join([*lines, "", f"exec {shlex.join(launch)}", ""])


def _components(options: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in options:
        if word == BETWEEN:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _defaults(config: Config, components: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """For each component, the options that its own options leave open."""
    config = with_places(config)
    workers, placed = len(config.cluster.workers), [host for host in role_hosts(config.cluster).workers if host]
    named = hosts_with_roles(config) if config.cluster.hosts and len(components) == 1 else ()
    nodes = [_nodes(own) or (len(named) or workers if len(components) == 1 else 1) for own in components]
    tasks = max(Counter(placed).values()) if named else -(-workers // sum(nodes))
    total = sum(_tasks(own, count, tasks) for own, count in zip(components, nodes, strict=True))
    if total < workers and sum(nodes) > 1:
        raise UsageError(
            f"sbatch is told of {total} tasks for {workers} workers; ask for a task per worker: "
            f"--ntasks-per-node={tasks}, or leave the number of tasks out"
        )
    for index, own in enumerate(components):
        lines = []
        if index == 0 and not _has(own, _JOB_NAME):
            lines.append(f"--job-name={config.name}")
        if not _has(own, (*_NODES, *_NODE_LIST, *_TASKS)):
            lines.append(f"--nodes={nodes[index]}")
            lines += [f"--nodelist={','.join(named)}"] * bool(named)
        if not _has(own, (*_TASKS, *_TASKS_PER_NODE)):
            lines.append(f"--ntasks-per-node={tasks}")
        if not _has(own, _CPUS):
            lines.append(f"--cpus-per-task={cpus_per_worker(config)}")
        if index == 0 and not _has(own, _SIGNAL):
            lines.append(f"--signal=B:TERM@{NOTICE_S}")
        yield lines


def _nodes(options: Sequence[str]) -> int | None:
    """The least number of nodes that the options ask for; None if they do not say."""
    listed = _value(options, _NODE_LIST)
    number = _number(options, _NODES) or (listed and sum(1 for _ in expand_nodes(listed, "--nodelist")))
    return number or (1 if _number(options, _TASKS) == 1 else None)


def _tasks(options: Sequence[str], nodes: int, per_node: int) -> int:
    return _number(options, _TASKS) or nodes * (_number(options, _TASKS_PER_NODE) or per_node)


def _has(options: Sequence[str], names: Sequence[str]) -> bool:
    return _value(options, names) is not None


def _number(options: Sequence[str], names: Sequence[str]) -> int | None:
    """The first number of an option, such as the smallest number of nodes."""
    found = re.match(r"[0-9]{1,6}", _value(options, names) or "")
    return int(found.group()) if found and int(found.group()) > 0 else None


def _value(options: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of an option: `--name=value`, `--name value`, `-nvalue`, `-n value`. Empty for one without a value.

    None if the option is not given.
    """
    for place, word in enumerate(options):
        following = [*options[place + 1 : place + 2], ""][0]
        value = "" if following.startswith("-") else following
        for name in names:
            if word == name:
                return value
            if name.startswith("--") and word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
            if not name.startswith("--") and not word.startswith("--") and word.startswith(name):
                return word.removeprefix(name)
    return None
