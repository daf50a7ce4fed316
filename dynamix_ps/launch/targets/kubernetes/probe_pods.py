"""The manifests of the network probe in Kubernetes, as data: one probe per node, for the jobs of some namespaces. Pure.

The probe has its own namespace, because its pods see all processes of their nodes. Pods of jobs may not mount a folder
of the node, so the folder of the probe is a persistent volume, and each namespace has a claim for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynamix_ps.launch.targets.kubernetes.pod_template import PROBE_CLAIM, PROBE_FOLDER, Manifest

NAMESPACE = "dynamix-probe"
_LABELS = {"app.kubernetes.io/name": "dynamix-probe"}
_HOST_FOLDER: Manifest = {"path": PROBE_FOLDER, "type": "DirectoryOrCreate"}
_SIZE = {"storage": "1Mi"}  # a volume has one; nothing is stored there
_CLASS: Manifest = {"storageClassName": ""}  # nothing makes such a volume on demand

# Loads programs that read the kernel (Linux 5.11); reads the sockets and the roles of processes of other users.
CAPABILITIES = ("BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH")


def probe_manifests(
    image: str, namespaces: Sequence[str], privileged: bool = False, pull_secret: str | None = None
) -> dict[str, Manifest]:
    """All manifests of the probe by name, in the order in which to apply them.

    Args:
        namespaces: the namespaces of jobs that use the probe.
        privileged: whether the container is privileged instead of having CAPABILITIES.
        pull_secret: name of the Secret with the password of the image's registry, in NAMESPACE.
    """
    level = {"pod-security.kubernetes.io/enforce": "privileged"}  # which `hostPID` needs
    made = {
        "namespace": _manifest("v1", "Namespace", NAMESPACE, labels=level),
        "probe": _daemon_set(image, privileged, pull_secret),
    }
    for namespace in namespaces:
        made[f"volume-{namespace}"] = _volume(namespace)
        made[f"claim-{namespace}"] = _claim(namespace)
    return made


def _daemon_set(image: str, privileged: bool, pull_secret: str | None) -> Manifest:
    powers: Manifest = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "probe",
        "image": image,
        "command": ["dynamix"],
        "args": ["probe", "serve"],
        # Added capabilities are root's alone.
        "securityContext": {"runAsUser": 0, **({"privileged": True} if privileged else powers)},
        "resources": {"requests": {"cpu": "20m", "memory": "200Mi"}},
        "volumeMounts": [{"name": "socket", "mountPath": PROBE_FOLDER}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "hostPID": True,  # it tells processes by the numbers that the kernel has for them
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "socket", "hostPath": _HOST_FOLDER}],
    }
    if pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": pull_secret}]
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    spec = {"selector": {"matchLabels": _LABELS}, "template": template}
    return _manifest("apps/v1", "DaemonSet", "dynamix-probe", NAMESPACE, _LABELS) | {"spec": spec}


def _volume(namespace: str) -> Manifest:
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": _SIZE,
        "claimRef": {"namespace": namespace, "name": PROBE_CLAIM},
        "hostPath": _HOST_FOLDER,
        "persistentVolumeReclaimPolicy": "Retain",
    }
    return _manifest("v1", "PersistentVolume", _volume_name(namespace)) | {"spec": spec | _CLASS}


def _claim(namespace: str) -> Manifest:
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": _SIZE},
        "volumeName": _volume_name(namespace),
    }
    return _manifest("v1", "PersistentVolumeClaim", PROBE_CLAIM, namespace) | {"spec": spec | _CLASS}


def _volume_name(namespace: str) -> str:
    return f"{PROBE_CLAIM}-{namespace}"


def _manifest(
    version: str, kind: str, name: str, namespace: str | None = None, labels: Manifest | None = None
) -> Manifest:
    metadata: Manifest = {"name": name, "labels": labels or _LABELS}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
