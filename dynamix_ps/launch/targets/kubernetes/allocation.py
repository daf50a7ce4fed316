"""The pods of a Kubernetes job as hosts. The launcher reaches their agents by TCP with TLS.

One pod runs `dynamix launch`, the others `dynamix agent`. The manifest names the pods in the launcher's environment
(DYNAMIX_PODS), and the folder with the secret of the job. No pod uses the API of Kubernetes, so none needs an account.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dynamix_ps import own_process
from dynamix_ps.config import variables
from dynamix_ps.config.schema import MAX_HOSTS, Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.targets.command_link import ON_OWN_MACHINE, AgentCommand
from dynamix_ps.launch.targets.kubernetes import tls_command
from dynamix_ps.launch.targets.kubernetes.listening_agent import DEFAULT_PORT

_POD = re.compile(r"(?P<name>[^=,\s]+)=(?P<address>[^=,\s]+):(?P<slots>[0-9]{1,4})")
_TRY_S, _AGAIN_S = 5.0, 1.0


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod: a host of the job.

    Attributes:
        host: its name in the cluster file.
        address: the name in the headless service under which the other pods reach this one.
        slots: how many workers the pod may run.
    """

    host: str
    address: str
    slots: int


def written(pods: Sequence[Pod]) -> str:
    """The pods as DYNAMIX_PODS has them: `fast=train-launcher-0-0.train:2,slow=train-agents-0-0.train:1`."""
    return ",".join(f"{pod.host}={pod.address}:{pod.slots}" for pod in pods)


def read(text: str) -> tuple[Pod, ...]:
    """The pods in a text of `written`. Raises EnvironmentNotReady."""
    pods = []
    for word in text.split(","):
        found = _POD.fullmatch(word)
        if found is None:
            raise EnvironmentNotReady(
                f"{variables.PODS}: {word!r} is no pod; expected host=address:slots, separated by commas"
            )
        pods.append(Pod(found["name"], found["address"], int(found["slots"])))
    if len({pod.host for pod in pods}) < len(pods) or len(pods) > MAX_HOSTS:
        raise EnvironmentNotReady(f"{variables.PODS}: expected up to {MAX_HOSTS} hosts, each once; got {text[:200]!r}")
    return tuple(pods)


class KubernetesJob:
    """The pods of a job, seen from the pod of the launcher.

    Args:
        pods: all pods, including this one.
        folder: has the secret of the job.
        hostname: the name of this pod.
    """

    starts_own_agent = False

    def __init__(self, pods: Sequence[Pod], folder: Path, hostname: str) -> None:
        self._pods = {pod.host: pod for pod in pods}
        self._folder, self._hostname = folder, hostname
        self.name = f"the Kubernetes job of {len(pods)} pods"

    def hosts(self, workers: int, cpus: int = 1) -> dict[str, Host]:
        """The hosts in the order of the pods, whose CPUs are those of their manifest.

        Raises UsageError if the pods have too few slots for so many workers.
        """
        slots = sum(pod.slots for pod in self._pods.values())
        if slots < workers:
            raise UsageError(
                f"{self.name} has {slots} slots for {workers} workers; write its manifests anew: dynamix k8s"
            )
        return {pod.host: Host(address=pod.address, slots=pod.slots) for pod in self._pods.values()}

    def reaches(self, host: str) -> bool:
        """Whether a host is one of its pods."""
        return host in self._pods

    def agent_command(self, host: str) -> AgentCommand:
        """The command that reaches the agent of a pod."""
        pod = self._pods[host]
        if pod.address.partition(".")[0] == self._hostname:  # its name may not be known yet
            return ON_OWN_MACHINE
        argv = own_process.command(tls_command.MODULE, pod.address, str(DEFAULT_PORT), str(self._folder))
        return AgentCommand(argv, f"the connection to {pod.address}", advice=partial(advice, pod.address))


def kubernetes_job(environ: Mapping[str, str]) -> KubernetesJob | None:
    """The Kubernetes job around this process; None where there is none.

    Raises:
        EnvironmentNotReady: its variables cannot be understood.
    """
    text, folder = environ.get(variables.PODS), environ.get(variables.PODS_SECRET)
    if not text:
        return None
    if not folder:
        raise EnvironmentNotReady(
            f"{variables.PODS} is set and {variables.PODS_SECRET} is not; name the folder with the job's Secret there"
        )
    return KubernetesJob(read(text), Path(folder), socket.gethostname())


def advice(address: str, exit_code: int, lines: Sequence[str], spoke: bool) -> str:
    """What to do when the connection to a pod has ended. Pure."""
    pod = address.partition(".")[0]
    if any("no certificate of this job" in line or "TLS:" in line for line in lines):
        return f"delete the job and apply the output of one `dynamix k8s` for all of it; see: kubectl logs {pod}"
    return f"its pod has ended, was moved, or serves another launcher; see: kubectl describe pod {pod}"


def wait_for_agents(pods: Sequence[Pod], port: int = DEFAULT_PORT) -> None:
    """Wait, without limit, until an agent listens in each of these pods: pods start one after another."""
    for pod in pods:
        while True:
            try:
                socket.create_connection((pod.address, port), _TRY_S).close()
                break
            except OSError as error:
                print(f"waits for {pod.address}: {error.strerror or error}", flush=True)
                time.sleep(_AGAIN_S)


def main() -> int:
    """Entry point of the container that runs in the launcher's pod before the launcher. DYNAMIX_PODS has the others."""
    wait_for_agents(read(variables.get(variables.PODS) or ""))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
