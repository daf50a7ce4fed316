"""The nodes of a Ray cluster as hosts. Their agents are actors of Ray.

`dynamix launch` runs once, on a node of the cluster: `ray job submit` starts it, or a shell with RAY_ADDRESS. Ray takes
a place for each worker (a placement group) and says on which nodes the places are. A node is a host, under its address,
and its places are slots. A process of its own speaks to Ray (driver.py) and ends with the launch. Ray then ends the
actors and frees the places.

The number of workers is fixed for a run. A node that Ray adds after the start takes part in the next run; a node that
Ray loses ends the run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from dynamix_ps import own_process
from dynamix_ps.config.schema import Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.targets.command_link import AgentCommand

ADDRESS = "RAY_ADDRESS"
_OF_THIS_PROCESS = "local"  # Ray's word for a cluster that begins and ends with the process
_DRIVER = "dynamix_ps.launch.targets.ray.driver"
_STREAM = "dynamix_ps.launch.targets.ray.stream"
_END_S = 10.0  # of the driver, after its input
_LAST_LINES = 3
_KILLED = 137  # 128 and SIGKILL
# What Ray or the Python of the node say, and what to do about it.
_ADVICE = (
    (r"[Nn]ode.*(has died|is dead|was terminated)|is unavailable", "see `ray list nodes`, and Ray's logs of that node"),
    (r"[Oo]ut [Oo]f [Mm]emory|OutOfMemory|OOM", "give the host fewer workers, or Ray nodes with more memory"),
    (r"No module named", "install this package there, in the Python of Ray, or name it in the job's runtime_env"),
)


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node that has workers. `devices`: numbers of the GPUs that Ray gives these workers."""

    id: str
    address: str
    slots: int
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RayPlacement:
    """The nodes of the workers, in the order of the workers, and the socket on which the driver serves stream.py."""

    nodes: tuple[RayNode, ...]
    socket: str


class RayJob:
    """The cluster around this process."""

    starts_own_agent = True  # with the environment and the GPUs that all its nodes get

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._nodes: dict[str, RayNode] = {}  # by address
        self._socket = ""
        self.name = f"Ray at {environ[ADDRESS]}"

    def hosts(self, workers: int, cpus: int = 1) -> dict[str, Host]:
        """The hosts of a job with so many workers, in the order of their places. Waits until Ray has the places.

        Raises:
            UsageError: this process is not on a node of the cluster.
            EnvironmentNotReady: Ray is not installed, cannot be reached, or has no such places.
        """
        if self._environ[ADDRESS].startswith("ray://"):
            raise UsageError(
                f"{ADDRESS} is {self._environ[ADDRESS]}, which leads there from outside; launch on a node of "
                "the cluster, such as by `ray job submit -- dynamix launch ...`"
            )
        if importlib.util.find_spec("ray") is None:
            raise EnvironmentNotReady(
                f"{ADDRESS} is set, and {sys.executable} has no ray; run: pip install dynamix-ps[ray], or name hosts"
            )
        places = self._take(workers, cpus)
        for node in places.nodes:
            if (other := self._nodes.setdefault(node.address, node)) is not node:
                raise EnvironmentNotReady(
                    f"Ray has two nodes at {node.address} ({other.id} and {node.id}); start one per machine"
                )
        self._socket = places.socket
        return {node.address: Host(slots=node.slots, devices=node.devices or None) for node in places.nodes}

    def reaches(self, host: str) -> bool:
        """Whether a host is a node on which Ray has places for the job."""
        return host in self._nodes

    def agent_command(self, host: str) -> AgentCommand:
        """The command that reaches the agent of a node."""
        argv = own_process.command(_STREAM, self._socket, self._nodes[host].id)
        return AgentCommand(argv, f"Ray's actor on {host}", environ=self._environ, advice=partial(advice, host))

    def _take(self, workers: int, cpus: int) -> RayPlacement:
        """Start the driver, and wait for its answer. The driver ends with this object at the latest."""
        said = tempfile.TemporaryFile()  # noqa: SIM115  the driver writes to it until its end
        process = subprocess.Popen(
            own_process.command(_DRIVER, str(workers), str(cpus)),
            env=dict(self._environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the launcher
        )
        weakref.finalize(self, _end, process, said)
        assert process.stdout is not None
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "waiting" in answer:
                print(answer["waiting"], file=sys.stderr, flush=True)
            elif "refused" in answer:
                raise EnvironmentNotReady(answer["refused"])
            else:
                nodes = (RayNode(**{**node, "devices": tuple(node["devices"])}) for node in answer["nodes"])
                return RayPlacement(tuple(nodes), answer["socket"])
        said.seek(0)
        lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
        words = "; ".join(lines[-_LAST_LINES:]) or "it said nothing"
        raise EnvironmentNotReady(f"the launch's driver of Ray has ended: {words}")


def ray_job(environ: Mapping[str, str]) -> RayJob | None:
    """The Ray cluster around this process; None where there is none.

    RAY_ADDRESS may also name a dashboard, for `ray job submit`, or ask for a cluster of this process alone.
    """
    address = environ.get(ADDRESS, "")
    return None if address in ("", _OF_THIS_PROCESS) or address.startswith(("http://", "https://")) else RayJob(environ)


def advice(host: str, exit_code: int, lines: Sequence[str], spoke: bool) -> str:
    """What to do when an actor or its agent has ended. `lines`: the last lines about it. Pure."""
    said = "\n".join(lines)
    for pattern, text in _ADVICE:
        if re.search(pattern, said):
            return text
    if exit_code == _KILLED:
        return f"its agent was killed, perhaps for memory: see the kernel's log of {host}"
    return "" if spoke else "see `ray status`"


def _end(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    """End the driver, by closing its input."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, said:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # Ray ends the actors of a driver that is gone
            process.wait()
