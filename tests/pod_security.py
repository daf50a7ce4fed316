"""The rules of the Pod Security profile `restricted` for a pod's specification, those of `baseline` among them.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Spec = Mapping[str, Any]

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
_SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: Spec) -> set[str]:
    """Names of the fields by which this pod breaks the profile."""
    return {*_of_pod(pod), *(field for container in _containers(pod) for field in _of_container(pod, container))}


def _containers(pod: Spec) -> list[Spec]:
    return [each for kind in ("initContainers", "containers", "ephemeralContainers") for each in pod.get(kind, ())]


def _of_pod(pod: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", ()):
        if not set(volume) - {"name"} <= _VOLUMES:
            yield "volumes"
    security = pod.get("securityContext", {})
    yield from _of_both(security)
    if {each["name"] for each in security.get("sysctls", ())} - _SYSCTLS:
        yield "sysctls"


def _of_both(security: Spec) -> Iterator[str]:
    """What a pod and a container may set alike."""
    if security.get("runAsUser") == 0:
        yield "runAsUser"
    if security.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if security.get("seccompProfile", {"type": "RuntimeDefault"})["type"] not in _SECCOMP:
        yield "seccompProfile"
    if security.get("appArmorProfile", {"type": "RuntimeDefault"})["type"] not in _SECCOMP:
        yield "appArmorProfile"
    labels = security.get("seLinuxOptions", {})
    if labels.get("type") not in _SELINUX or labels.get("user") or labels.get("role"):
        yield "seLinuxOptions"
    if security.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"


def _of_container(pod: Spec, container: Spec) -> Iterator[str]:
    own = container.get("securityContext", {})
    yield from _of_both(own)
    both = {**pod.get("securityContext", {}), **own}
    if both.get("runAsNonRoot") is not True:
        yield "runAsNonRoot"
    if "seccompProfile" not in both:
        yield "seccompProfile"
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
    probes = [container.get(kind, {}) for kind in ("livenessProbe", "readinessProbe", "startupProbe")]
    hooks = container.get("lifecycle", {}).values()
    if any(each.get(how, {}).get("host") for each in (*probes, *hooks) for how in ("httpGet", "tcpSocket")):
        yield "host"
