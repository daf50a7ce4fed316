"""The pods of a job's manifests: containers, volumes and resources. Pure.

The pods pass the Pod Security profile `restricted`: no root, no capability, no folder of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dynamix_ps.config import variables
from dynamix_ps.launch.targets.kubernetes.allocation import written
from dynamix_ps.launch.targets.kubernetes.listening_agent import DEFAULT_PORT
from dynamix_ps.launch.targets.kubernetes.pods import LAUNCHER, Needs, PodGroup
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET

Manifest = dict[str, Any]

GRACE_S = 60  # after SIGTERM: enough for the present iteration and a checkpoint
SECRET_FOLDER = "/etc/dynamix"
RUN_DIR = "/runs"
CLUSTER_FILE = "cluster.yaml"  # in the folder of the secret, as its `env` may hold passwords
PROBE_FOLDER = DEFAULT_SOCKET.rpartition("/")[0]
PROBE_CLAIM = "dynamix-probe"  # whose volume is that folder of the node (probe_pods.py)

_USER_ID = 1000  # as in docker/Dockerfile; other images may not know this user
_GROUP_ID = 1000  # of volumes, so that processes of any user read the secret and write run folders


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of a job that the cluster file does not have.

    Attributes:
        name: name of the job, and prefix of all that belongs to it.
        image: has this package, BytePS, and the script with its packages.
        namespace: None: where kubectl puts it.
        pull_secret: name of the Secret with the password of the image's registry.
        pull_always: whether a node asks for the image each time.
        claim: name of the PersistentVolumeClaim for run folders; None: the run folders end with the launcher's pod.
        run_dir: where run folders lie in the launcher's pod.
        resume: checkpoint in that pod.
        shm: size of /dev/shm in each pod.
        restarts: how often the job begins anew after a failure.
        probe: whether pods use the network probe of their nodes.
    """

    name: str
    image: str
    namespace: str | None = None
    pull_secret: str | None = None
    pull_always: bool = False
    claim: str | None = None
    run_dir: str = RUN_DIR
    resume: str | None = None
    shm: str = "2Gi"
    restarts: int = 0
    probe: bool = False


class PodTemplates:
    """The pods of all groups of a job, the launcher's first."""

    def __init__(self, options: JobOptions, groups: Sequence[PodGroup]) -> None:
        self._options, self._groups = options, groups

    def of(self, group: PodGroup, container: str) -> Manifest:
        """The specification of the pods of a group, whose container has this name."""
        options, launches = self._options, group.name == LAUNCHER
        pod: Manifest = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # its first process reaps what loses its parent, whatever the image is
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER_ID,
                "runAsGroup": _GROUP_ID,
                "fsGroup": _GROUP_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": self._volumes(launches),
            "containers": [self._launcher(group, container) if launches else self._agent(group, container)],
        }
        if launches and len(self._groups) > 1:
            pod["initContainers"] = [self._waiting()]
        if options.pull_secret is not None:
            pod["imagePullSecrets"] = [{"name": options.pull_secret}]
        if group.needs.labels:
            pod["nodeSelector"] = dict(group.needs.labels)
        return pod

    def _launcher(self, group: PodGroup, name: str) -> Manifest:
        arguments = ["launch", "-c", f"{SECRET_FOLDER}/{CLUSTER_FILE}"]
        if self._options.resume is not None:
            arguments += ["--resume", self._options.resume]
        runs = {"name": "runs", "mountPath": self._options.run_dir}
        return {
            **self._container(name, ["dynamix"], arguments),
            "env": self._environment() if len(self._groups) > 1 else [],
            "resources": _resources(group.needs),
            "volumeMounts": [*self._mounts(), runs],
        }

    def _agent(self, group: PodGroup, name: str) -> Manifest:
        return {
            **self._container(name, ["dynamix"], ["agent", "--secret", SECRET_FOLDER]),
            "ports": [{"name": "agent", "containerPort": DEFAULT_PORT, "protocol": "TCP"}],
            "resources": _resources(group.needs),
            "volumeMounts": self._mounts(),
        }

    def _waiting(self) -> Manifest:
        """The container that delays the launcher until all agents listen."""
        command = ["python", "-m", "dynamix_ps.launch.targets.kubernetes.allocation"]
        others = {"name": variables.PODS, "value": self._pods(1)}
        # Python imports from the folder in which it is started.
        return {**self._container("waits-for-agents", command, []), "workingDir": "/", "env": [others]}

    def _container(self, name: str, command: Sequence[str], arguments: Sequence[str]) -> Manifest:
        policy = {"imagePullPolicy": "Always"} if self._options.pull_always else {}
        given = {"args": list(arguments)} if arguments else {}
        powerless = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        own = {"command": list(command), **given, "securityContext": powerless}
        return {"name": name, "image": self._options.image, **policy, **own}

    def _environment(self) -> list[Manifest]:
        values = {variables.PODS: self._pods(0), variables.PODS_SECRET: SECRET_FOLDER}
        return [{"name": name, "value": value} for name, value in values.items()]

    def _pods(self, first: int) -> str:
        """The pods of this group and all groups after it."""
        return written([pod for group in self._groups[first:] for pod in group.pods])

    def _volumes(self, launches: bool) -> list[Manifest]:
        options = self._options
        runs: Manifest = {"name": "runs", "emptyDir": {}}
        if options.claim is not None:
            runs = {"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}}
        return [
            {"name": "secret", "secret": {"secretName": options.name, "defaultMode": 0o440}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm}},
            *([runs] if launches else []),
            *([_probe_volume()] if options.probe else []),
        ]

    def _mounts(self) -> list[Manifest]:
        return [
            {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            *([{"name": "socket", "mountPath": PROBE_FOLDER, "readOnly": True}] if self._options.probe else []),
        ]


def _probe_volume() -> Manifest:
    """The folder of a node in which its network probe answers, by a claim: a pod may not mount it directly."""
    return {"name": "socket", "persistentVolumeClaim": {"claimName": PROBE_CLAIM, "readOnly": True}}


def _resources(needs: Needs) -> Manifest:
    """Requests for cores, without a limit: a limit would hold up a worker that has a burst of work."""
    requests: Manifest = {"cpu": str(needs.cpus)}
    limits: Manifest = {}
    if needs.memory is not None:
        requests["memory"] = limits["memory"] = needs.memory
    if needs.gpus:
        limits["nvidia.com/gpu"] = str(needs.gpus)
    return {"requests": requests, **({"limits": limits} if limits else {})}
