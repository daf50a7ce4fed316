"""Slurm on the hosts of a bed: a controller and munge on one of them, slurmd on the others. Needs Slurm and munge.

All that it reads and writes is in a folder of its own. Nodes have the names of the hosts, and there is no name service:
programs find them by what Slurm says.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.bed import permitted
from tests.launching import begun, environment, run_to_end, wait_for

NODES = ("node-1", "node-2", "node-3")
LOGIN = "login"  # where the controller runs, and users submit jobs
CPUS = 4  # that each node says it has
_START_S = 60.0
_PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge", "srun": "slurm-client"}  # and its package
_SBIN = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_SLURM_CONF = """\
ClusterName=bed
SlurmctldHost={hostname}({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def unavailable() -> str | None:
    """Why there can be no such cluster; None if there can."""
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program, path=_SBIN) is None})
    return f"not installed: {', '.join(missing)} (make slurm)" if missing else permitted()


class SlurmCluster:
    """What it starts ends with the bed. Raises AssertionError if a daemon does not start."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self._folder, self._conf = bed, folder, folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        nodes = (f"NodeName={name} NodeAddr={bed.address(name)} CPUs={CPUS} State=UNKNOWN" for name in NODES)
        text = _SLURM_CONF.format(
            hostname=socket.gethostname(), controller=bed.address(LOGIN), folder=folder, nodes="\n".join(nodes)
        )
        self._conf.write_text(text)
        (folder / "state").mkdir()
        self._start_munge()
        self._start("slurmctld", LOGIN, "slurmctld", "-D", "-f", f"{self._conf}")
        for name in NODES:
            (folder / f"spool-{name}").mkdir()
            self.start_node(name)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Until all nodes are free for jobs."""
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%t %D") == f"idle {len(NODES)}\n", self._said(), _START_S)

    def start_node(self, name: str) -> None:
        self._start(f"slurmd-{name}", name, "slurmd", "-D", "-f", f"{self._conf}", "-N", name)

    def popen(self, *argv: str, cwd: Path, on: str = LOGIN) -> subprocess.Popen[str]:
        """A command of a user; its standard error and output come in one stream."""
        return begun([*self.bed.inside(on), *argv], cwd, self.environment())

    def run(self, *argv: str) -> str:
        """Output of a command on the login host, without checking that it succeeds."""
        return run_to_end([*self.bed.inside(LOGIN), *argv], env=self.environment()).stdout

    def environment(self) -> dict[str, str]:
        return environment(SLURM_CONF=str(self._conf))

    def is_queued(self, job: str) -> bool:
        """Whether a job waits, runs, or is about to end."""
        return self.run("squeue", "-h", "-j", job) != ""

    def state_of(self, job: str) -> str:
        """State of a job, such as RUNNING."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def cancel_all(self) -> None:
        """End all jobs, and wait until the nodes are free."""
        self.run("scancel", "--full", "--user=root")
        self.run("scancel", "--user=root")
        wait_for(lambda: self.run("squeue", "-h") == "", "the end of all jobs", 60.0)

    def _start_munge(self) -> None:
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        files = [f"--{name}-file={self._folder / name}" for name in ("pid", "log", "seed")]
        socket_file = self._folder / "munge.socket"
        self._start("munged", LOGIN, "munged", "-F", "--force", f"--key-file={key}", f"--socket={socket_file}", *files)
        wait_for(socket_file.exists, self._said(), _START_S)

    def _start(self, name: str, host: str, *argv: str) -> None:
        program = shutil.which(argv[0], path=_SBIN) or argv[0]
        with (self._folder / f"{name}.log").open("wb") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": self.environment()}
            self._daemons[name] = self.bed.popen(host, [program, *argv[1:]], **options)

    def _said(self) -> str:
        return f"Slurm to start; see {self._folder}/*.log"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    with Bed({host: Link() for host in (*NODES, LOGIN)}) as bed:
        yield SlurmCluster(bed, folder)
