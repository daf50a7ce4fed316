"""Makes a worker of a process that another launcher has started: its environment becomes what `dynamix launch` sets.

Two steps: `adopt` finds the others and says who is which worker, which is enough for a ring; `Adopted.begin` agrees on
a configuration, and begins the run, with servers where the data plane has them.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Cluster, WorkerSection
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, UsageError
from dynamix_ps.launch.roles.ports import choose_ports
from dynamix_ps.metrics.network.monitor import NO_PROBE
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.other_launchers.attempts import agent_of_this_process
from dynamix_ps.other_launchers.job import StartedJob
from dynamix_ps.other_launchers.job_config import Wish
from dynamix_ps.other_launchers.meeting import JobProcess, Meeting
from dynamix_ps.other_launchers.place import LOOPBACK, meeting_place
from dynamix_ps.packages import installed_version
from dynamix_ps.rpc.fork import SWITCH as GRPC_FORK_SWITCH
from worker_hooks.process.adopted import Chosen
from worker_hooks.process.launched import StartedProcess
from worker_hooks.process.place import take_place

_ANY_PORT = 9  # nothing is sent


def adopt(started: StartedProcess) -> Adopted:
    """Meet the other processes of the job. From now on this process is a worker.

    Raises:
        UsageError: the variables of the launcher are incomplete, or another process has this rank.
        EnvironmentNotReady: rank 0 cannot listen, or the processes run different versions.
        TimedOut: some processes have not come.
    """
    place = meeting_place(started, os.environ)
    me = JobProcess(
        os.getpid(), _machine(), _address_towards(place.host), agent_of_this_process(), installed_version("dynamix-ps")
    )
    meeting = Meeting(place, me)
    if place.rank == 0:
        try:
            _check_versions([one.version for one in meeting.processes])
            address = _reached(me, meeting.processes)
            by_file = variables.get(variables.CONFIG) is not None
            meeting.say("root", [address, *_free_ports(place.size, address), by_file])
        except DynamixError as error:
            meeting.refuse(error)
            raise
    address, port, arbitrator_port, by_file = meeting.said_by("root", 0)
    own = _reached(me, meeting.processes)
    os.environ.update(
        {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": str(place.size),
            "DMLC_NUM_SERVER": "0",
            "DMLC_WORKER_ID": str(place.rank),
            "DMLC_PS_ROOT_URI": address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": own,
            variables.ROLE_NAME: f"worker-{place.rank}",
        }
    )
    if not os.path.exists(DEFAULT_SOCKET):
        os.environ.setdefault(variables.PROBE, NO_PROBE)
    os.environ.setdefault(GRPC_FORK_SWITCH, "0")  # before the script can import gRPC
    take_place(os.environ)
    return Adopted(StartedJob(place, meeting.processes, (address, arbitrator_port)), meeting, by_file)


class Adopted:
    """The job of this process, which is a worker of it. `by_file`: rank 0 has a cluster file."""

    def __init__(self, job: StartedJob, meeting: Meeting, by_file: bool) -> None:
        self._job, self._meeting, self._by_file = job, meeting, by_file
        self._chosen: Chosen | None = None  # before it begins

    def begin_by_file(self) -> None:
        """Begin, where a cluster file decides: it may name a data plane that needs servers. Raises as `begin`."""
        if self._by_file and self._chosen is None:
            self.begin(0, Chosen())

    def begin(self, first_size: int, chosen: Chosen) -> None:
        """Agree with the others, and begin the run. Later calls only check that they choose the same.

        Raises:
            DynamixError: the configuration is wrong, or the run cannot begin.
            UsageError: an earlier call has chosen something else.
        """
        if self._chosen is not None:
            if str(chosen) and self._by_file:
                raise UsageError(f"attach({chosen}): the cluster file says so for this job; remove it here, or there")
            if str(chosen) and chosen != self._chosen:
                raise UsageError(
                    f"attach({chosen}) after attach({self._chosen}): the trainings of a process share policy and "
                    "batch; give the same to all, or to the first alone"
                )
            return
        self._chosen = chosen
        no_byteps = ""
        if self._by_file:
            from dynamix_ps.byteps_build.install import lack_of_byteps  # which a ring does not need

            no_byteps = lack_of_byteps("torch")
        self._meeting.say("wish", asdict(Wish(first_size, chosen, os.environ["DMLC_NODE_HOST"], no_byteps)))
        if self._job.place.rank == 0:
            from dynamix_ps.other_launchers.begin import begin_run

            try:
                begun, here = begin_run(self._job, [_wish(told) for told in self._meeting.said_by_all("wish")])
            except DynamixError as error:
                self._meeting.refuse(error)
                raise
            self._meeting.say("run", begun)
            self._meeting.say("here", here)
        begun, leader = self._meeting.said_by("run", 0), self._job.ranks_here[0]
        os.environ.update(begun["environment"])
        if leader == self._job.place.rank != 0:
            from dynamix_ps.other_launchers.begin import begin_mirror

            self._meeting.say("here", begin_mirror(self._job, begun))
        os.environ.update(self._meeting.said_by("here", leader)[str(self._job.place.rank)])


def _wish(told: dict[str, Any]) -> Wish:
    batch = told["chosen"]["batch"]
    chosen = Chosen(told["chosen"]["policy"], None if batch is None else tuple(batch))
    return Wish(**{**told, "chosen": chosen})


def _check_versions(versions: Sequence[str | None]) -> None:
    if len(set(versions)) > 1:
        found = ", ".join(f"{version} on rank {versions.index(version)}" for version in dict.fromkeys(versions))
        raise EnvironmentNotReady(f"the processes run different versions of dynamix-ps: {found}; install one on all")


def _free_ports(workers: int, address: str) -> tuple[int, int]:
    """Of the ring and of the arbitrator."""
    return choose_ports(Cluster(host=address, workers=(WorkerSection(),) * workers), random.Random())


def _address_towards(host: str) -> str:
    """The address of this machine from which its route to `host` starts; a loopback address: `host` is here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as asking:
            asking.connect(address)
            return str(asking.getsockname()[0])
    except OSError as error:
        raise EnvironmentNotReady(
            f"this process has no route to {host} (MASTER_ADDR): {error.strerror or error}"
        ) from error


def _reached(me: JobProcess, processes: Sequence[JobProcess]) -> str:
    """The address under which the others reach this process: a loopback one if all are here, and no such one if not."""
    if {(one.machine, one.address) for one in processes} == {(me.machine, me.address)}:
        return LOOPBACK
    elsewhere = [one.address for one in processes if not ipaddress.ip_address(one.address).is_loopback]
    if not ipaddress.ip_address(me.address).is_loopback:
        return me.address
    return _address_towards(elsewhere[0]) if elsewhere else LOOPBACK


def _machine() -> str:
    """The same for all processes that see the same files and each other."""
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid")]
    return " ".join((Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *spaces))
