"""The manifests of a job in Kubernetes, as data. Pure.

A JobSet has two kinds of jobs: `launcher`, one pod with `dynamix launch` and the roles of its host, and one job for
each group of other pods that are alike, with `dynamix agent`. The launcher alone decides about the end: its success is
that of the JobSet, and its exit code says whether starting again could help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.kubernetes import written
from dynamix_ps.launch.listening_agent import DEFAULT_PORT
from dynamix_ps.launch.pods import LAUNCHER, Needs, PodGroup
from dynamix_ps.metrics.network.probe_protocol import DEFAULT_SOCKET

Kind = Literal["jobset", "trainjob"]
Manifest = dict[str, Any]

GRACE_S = 60  # after SIGTERM: enough for the present iteration and a checkpoint
SECRET_FOLDER = "/etc/dynamix"
RUN_DIR = "/runs"
CLUSTER_FILE = "cluster.yaml"  # in that folder, as its `env` may hold passwords
_PROBE_FOLDER = DEFAULT_SOCKET.rpartition("/")[0]
_GROUP_ID = 1000  # of volumes, so that processes of any user read the secret and write run folders
_TRAINER = "trainer.kubeflow.org"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the cluster file does not say.

    Attributes:
        name: of the job and of all that belongs to it.
        image: with this package, BytePS, and the script with its packages.
        namespace: None: where kubectl puts it.
        pull_secret: name of the Secret with the password of the image's registry.
        pull_always: whether a node asks for the image each time.
        claim: name of the PersistentVolumeClaim for run folders; None: they go with the launcher's pod.
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


def manifests(
    kind: Kind, options: JobOptions, groups: Sequence[PodGroup], secret: Mapping[str, str]
) -> dict[str, Manifest]:
    """All manifests of a job by name, in the order in which they are applied.

    Args:
        groups: the launcher's pod first.
        secret: texts of the Secret's files by name, the cluster file among them.
    """
    own = _Job(options, groups)
    job_set = own.job_set_spec(kind)
    made = {
        "secret": own.object("v1", "Secret", {"type": "Opaque", "stringData": dict(secret)}),
        "service": own.object("v1", "Service", {"spec": own.service()}),
        "network-policy": own.object("networking.k8s.io/v1", "NetworkPolicy", {"spec": own.network_policy()}),
    }
    if kind == "jobset":
        return made | {"jobset": own.object("jobset.x-k8s.io/v1alpha2", "JobSet", {"spec": job_set})}
    runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": job_set}}  # one node: that of the launcher
    reference = {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": options.name}
    return made | {
        "training-runtime": own.object(f"{_TRAINER}/v1alpha1", "TrainingRuntime", {"spec": runtime}),
        "trainjob": own.object(f"{_TRAINER}/v1alpha1", "TrainJob", {"spec": {"runtimeRef": reference}}),
    }


def probe_manifest(image: str, namespace: str | None, pull_secret: str | None = None) -> Manifest:
    """A DaemonSet with the privileged network probe, for all jobs of all nodes on which it runs."""
    labels = {"app.kubernetes.io/name": "dynamix-probe"}
    container = {
        "name": "probe",
        "image": image,
        "command": ["dynamix"],
        "args": ["probe", "serve"],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "20m", "memory": "200Mi"}},
        "volumeMounts": [{"name": "socket", "mountPath": _PROBE_FOLDER}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "hostPID": True,  # it tells processes by the numbers that the kernel has for them
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [_probe_volume()],
    }
    if pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": pull_secret}]
    metadata: Manifest = {"name": "dynamix-probe", "labels": labels}
    if namespace is not None:
        metadata["namespace"] = namespace
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}


class _Job:
    def __init__(self, options: JobOptions, groups: Sequence[PodGroup]) -> None:
        self._options, self._groups = options, groups
        self._labels = {"app.kubernetes.io/name": "dynamix", "app.kubernetes.io/instance": options.name}

    def object(self, version: str, kind: str, body: Manifest) -> Manifest:
        metadata: Manifest = {"name": self._options.name, "labels": self._labels}
        if self._options.namespace is not None:
            metadata["namespace"] = self._options.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}

    def service(self) -> Manifest:
        """Headless: it gives each pod its name, which peers need before the pod is ready."""
        port = {"name": "agent", "port": DEFAULT_PORT, "protocol": "TCP"}
        return {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self._labels,
            "ports": [port],
        }

    def network_policy(self) -> Manifest:
        """Pods of the job reach each other on any port, and nobody else reaches them."""
        own = {"matchLabels": self._labels}
        return {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}

    def job_set_spec(self, kind: Kind) -> Manifest:
        rule = {
            "name": "wrongCommandOrFile",  # JobSet takes no dashes here
            "action": "FailJobSet",
            "targetReplicatedJobs": [LAUNCHER],
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
        return {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": self._options.name,
                "publishNotReadyAddresses": True,
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
            "failurePolicy": {
                "maxRestarts": self._options.restarts,
                "restartStrategy": "BlockingRecreate",  # a new launcher must not meet agents of before
                "rules": [rule],
            },
            "replicatedJobs": [self._replicated_job(group, kind) for group in self._groups],
        }

    def _replicated_job(self, group: PodGroup, kind: Kind) -> Manifest:
        launches = group.name == LAUNCHER
        # A TrainJob's own settings go to a container of this name in the job that is labelled as the trainer.
        container = "node" if launches and kind == "trainjob" else "launcher" if launches else "agent"
        spec: Manifest = {
            "completionMode": "Indexed",
            "completions": len(group.pods),
            "parallelism": len(group.pods),
            "backoffLimit": 0,  # a pod alone cannot join again: the JobSet starts all of them anew, or none
        }
        template: Manifest = {"spec": spec}
        if launches:
            codes = {"containerName": container, "operator": "In", "values": [UsageError.exit_code]}
            spec["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
        if launches and kind == "trainjob":
            template["metadata"] = {"labels": {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}}
        pod = self._pod(group, container, launches)
        spec["template"] = {"metadata": {"labels": self._labels}, "spec": pod}
        return {"name": group.name, "replicas": 1, "template": template}

    def _pod(self, group: PodGroup, container: str, launches: bool) -> Manifest:
        options = self._options
        pod: Manifest = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # its first process reaps what loses its parent, whatever the image is
            "securityContext": {"fsGroup": _GROUP_ID, "fsGroupChangePolicy": "OnRootMismatch"},
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
        """The launcher begins when all agents listen."""
        command = ["python", "-m", "dynamix_ps.launch.kubernetes"]
        others = {"name": variables.PODS, "value": self._pods(1)}
        return {**self._container("waits-for-agents", command, []), "env": [others]}

    def _container(self, name: str, command: Sequence[str], arguments: Sequence[str]) -> Manifest:
        policy = {"imagePullPolicy": "Always"} if self._options.pull_always else {}
        given = {"args": list(arguments)} if arguments else {}
        return {"name": name, "image": self._options.image, **policy, "command": list(command), **given}

    def _environment(self) -> list[Manifest]:
        values = {variables.PODS: self._pods(0), variables.PODS_SECRET: SECRET_FOLDER}
        return [{"name": name, "value": value} for name, value in values.items()]

    def _pods(self, first: int) -> str:
        """The pods of all groups from this one on."""
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
            *([{"name": "socket", "mountPath": _PROBE_FOLDER, "readOnly": True}] if self._options.probe else []),
        ]


def _probe_volume() -> Manifest:
    return {"name": "socket", "hostPath": {"path": _PROBE_FOLDER, "type": "DirectoryOrCreate"}}


def _resources(needs: Needs) -> Manifest:
    """Cores are asked for and not limited: a limit would hold up a worker that has a burst of work."""
    requests: Manifest = {"cpu": str(needs.cpus)}
    limits: Manifest = {}
    if needs.memory is not None:
        requests["memory"] = limits["memory"] = needs.memory
    if needs.gpus:
        limits["nvidia.com/gpu"] = str(needs.gpus)
    return {"requests": requests, **({"limits": limits} if limits else {})}
