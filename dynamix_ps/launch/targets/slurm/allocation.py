"""The nodes of a Slurm job as hosts, which srun reaches.

`dynamix launch` runs once, in the batch script or in a shell of the job. A node is a host, and a task that the job
asked for there is a slot. The agent of a node is a step of its own, `srun --nodelist=NODE ... python -m
dynamix_ps.launch.host.agent`, because srun passes the standard streams of one task unchanged and mixes the streams of
several. The step shares with other steps all that the job has on the node. The messages of the agents have the ends of
roles and their causes; the exit code of srun says only that an agent has ended.

At a time limit, a preemption or `scancel`, Slurm sends SIGTERM to the launcher, to agents, or to both. Each of these
signals ends the run in order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from dynamix_ps.config.schema import Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.targets.command_link import AgentCommand, agent_argv
from dynamix_ps.launch.targets.slurm.nodes import SlurmNode, job_nodes

_READ_S = 10.0
_STEP = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",  # other steps of the job may run there
    "--cpu-bind=none",  # to all that the job has on the node; the agent deals it out
    "--unbuffered",
    "--quiet",  # but for errors
    "--kill-on-bad-exit=0",
    "--chdir=/",  # Python imports from the folder in which it is started
    "--job-name=dynamix-agent",
)
# Options of the job that a step would take over from the environment, such as the GPUs of one task.
_OPTIONS = re.compile(r"(?:SLURM|SRUN)_(?!CONF|JWT).*")
_NODE = re.compile(r"^NodeName=(\S+)(?:.*?\sNodeAddr=(\S+))?", re.MULTILINE)
# What srun, Slurm on the node or its Python say, and what to do about it.
_ADVICE = (
    (r"already completing or completed|[Ii]nvalid job id", "the Slurm job is over: start it again"),
    (r"[Nn]odes are busy", "another step has all of the node: start it by srun --overlap"),
    (r"Node failure|not responding", "see `scontrol show node {host}`"),
    (r"oom-kill|[Oo]ut [Oo]f [Mm]emory", "ask Slurm for more memory (--mem)"),
    (r"[Nn]o such file|not found", "install the same environment under this path there, or on a disk that all share"),
    (r"No module named", "install this package there, in the same environment"),
    (r"task 0: Killed", "its agent was killed there, perhaps for memory: see the kernel's log of that node"),
)


class SlurmJob:
    """The job around this process."""

    starts_own_agent = False

    def __init__(self, nodes: Sequence[SlurmNode], environ: Mapping[str, str]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._environ = environ
        self.name = f"Slurm job {environ['SLURM_JOB_ID']}"

    def hosts(self, workers: int, cpus: int = 1) -> dict[str, Host]:
        """The hosts of a job with so many workers, in Slurm's order. The options of the job decide about their CPUs.

        A single node runs all workers. If the job asked for no number of tasks, the nodes share the workers evenly.

        Raises:
            UsageError: the job has fewer tasks than workers.
        """
        even = -(-workers // len(self._nodes))
        slots = {name: even if node.tasks is None else node.tasks for name, node in self._nodes.items()}
        if len(slots) == 1:
            slots = dict.fromkeys(slots, workers)
        if sum(slots.values()) < workers:
            raise UsageError(
                f"{self.name} has {sum(slots.values())} tasks for {workers} workers; "
                f"ask for a task per worker: --ntasks-per-node={even}, or --ntasks={workers}"
            )
        addresses = self._addresses()
        return {name: Host(address=addresses.get(name), slots=count) for name, count in slots.items()}

    def reaches(self, host: str) -> bool:
        """Whether a host is one of its nodes."""
        return host in self._nodes

    def agent_command(self, host: str) -> AgentCommand:
        """The command that starts the agent of a node. Raises EnvironmentNotReady if there is no srun."""
        srun = shutil.which("srun", path=self._environ.get("PATH"))
        if srun is None:
            raise EnvironmentNotReady(
                f"host {host}: there is no srun here to reach it; have Slurm's programs in PATH, also in a container"
            )
        component = self._nodes[host].component
        which = () if component is None else (f"--het-group={component}",)
        job = (f"--jobid={self._environ['SLURM_JOB_ID']}", f"--nodelist={host}")
        environ = {name: value for name, value in self._environ.items() if not _OPTIONS.fullmatch(name)}
        argv = (srun, *job, *which, *_STEP, *agent_argv(self._environ))
        return AgentCommand(argv, f"srun on {host}", environ=environ, advice=partial(advice, host))

    def _addresses(self) -> dict[str, str]:
        """The addresses of the nodes, where Slurm has addresses that differ from their names."""
        scontrol = shutil.which("scontrol", path=self._environ.get("PATH"))
        if scontrol is None:
            return {}
        argv = [scontrol, "--oneliner", "show", "node", ",".join(self._nodes)]
        try:
            done = subprocess.run(
                argv,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_READ_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}  # names count, and an agent whose peers they do not lead to says so
        return {name: address for name, address in _NODE.findall(done.stdout) if address not in ("", name)}


def slurm_job(environ: Mapping[str, str]) -> SlurmJob | None:
    """The Slurm job around this process; None where there is none.

    Raises:
        UsageError: srun has started this process as one of several.
        EnvironmentNotReady: Slurm's variables cannot be understood.
    """
    nodes = job_nodes(environ)
    if not nodes:
        return None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise UsageError(
            f"srun has started this command {tasks} times (SLURM_STEP_NUM_TASKS); it runs once per job and reaches the "
            "nodes by itself: leave srun out, or use srun --ntasks=1 --overlap"
        )
    return SlurmJob(nodes, environ)


def advice(host: str, exit_code: int, lines: Sequence[str], spoke: bool) -> str:
    """What to do when srun has ended. `lines`: the last lines of its standard error. Pure."""
    said = "\n".join(lines)
    for pattern, text in _ADVICE:
        if re.search(pattern, said):
            return text.format(host=host)
    return "" if spoke else f"see what this says: srun --overlap --nodelist={host} --ntasks=1 hostname"
