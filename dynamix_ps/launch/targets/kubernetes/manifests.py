"""The manifests of a job in Kubernetes, as data. Pure.

A JobSet has two kinds of jobs: `launcher`, one pod with `dynamix launch` and the roles of its host, and a job with
`dynamix agent` for each group of equal other pods. The launcher alone decides about the end: its success is the success
of the JobSet, and its exit code says whether another start could help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dynamix_ps.errors import UsageError
from dynamix_ps.launch.targets.kubernetes.listening_agent import DEFAULT_PORT
from dynamix_ps.launch.targets.kubernetes.pod_template import JobOptions, Manifest, PodTemplates
from dynamix_ps.launch.targets.kubernetes.pods import LAUNCHER, PodGroup

Kind = Literal["jobset", "trainjob"]

_TRAINER = "trainer.kubeflow.org"


def manifests(
    kind: Kind, options: JobOptions, groups: Sequence[PodGroup], secret: Mapping[str, str]
) -> dict[str, Manifest]:
    """All manifests of a job by name, in the order in which to apply them.

    Args:
        groups: the group of the launcher's pod first.
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


class _Job:
    def __init__(self, options: JobOptions, groups: Sequence[PodGroup]) -> None:
        self._options, self._groups = options, groups
        self._pods = PodTemplates(options, groups)
        self._labels = {"app.kubernetes.io/name": "dynamix", "app.kubernetes.io/instance": options.name}

    def object(self, version: str, kind: str, body: Manifest) -> Manifest:
        metadata: Manifest = {"name": self._options.name, "labels": self._labels}
        if self._options.namespace is not None:
            metadata["namespace"] = self._options.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}

    def service(self) -> Manifest:
        """The headless service, which gives each pod a name. Peers need the names before the pods are ready."""
        port = {"name": "agent", "port": DEFAULT_PORT, "protocol": "TCP"}
        return {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self._labels,
            "ports": [port],
        }

    def network_policy(self) -> Manifest:
        """The network policy: pods of the job reach each other on any port, and no other pod reaches them."""
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
        spec["template"] = {"metadata": {"labels": self._labels}, "spec": self._pods.of(group, container)}
        return {"name": group.name, "replicas": 1, "template": template}
