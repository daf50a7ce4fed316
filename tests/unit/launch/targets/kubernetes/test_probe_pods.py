"""The manifests of the network probe: its rights, and the folder that it shares with the pods of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from dynamix_ps.launch.targets.kubernetes.pod_template import PROBE_CLAIM, PROBE_FOLDER
from dynamix_ps.launch.targets.kubernetes.probe_pods import CAPABILITIES, NAMESPACE, probe_manifests
from tests.manifest_schemas import assert_valid
from tests.pod_security import violations


def pod_of(**options: Any) -> dict[str, Any]:
    spec: dict[str, Any] = probe_manifests("registry/train:1", ["ml"], **options)["probe"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


def test_its_container_has_the_capabilities_that_it_needs_and_is_not_privileged() -> None:
    pod = pod_of(pull_secret="registry")
    (container,) = pod["containers"]
    assert [*container["command"], *container["args"]] == ["dynamix", "probe", "serve"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": list(CAPABILITIES)}
    assert "privileged" not in security
    assert violations(pod) == {"hostPID", "volumes", "runAsUser", "runAsNonRoot", "capabilities"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_it_is_privileged_if_told() -> None:
    (container,) = pod_of(privileged=True)["containers"]
    assert container["securityContext"] == {"runAsUser": 0, "privileged": True}


def test_its_pods_are_in_a_namespace_of_their_own_which_admits_them() -> None:
    made = probe_manifests("image", ["ml"])
    assert made["namespace"]["metadata"]["name"] == made["probe"]["metadata"]["namespace"] == NAMESPACE
    assert made["namespace"]["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}


def test_each_namespace_has_a_claim_for_the_folder_in_which_the_probe_of_a_node_answers() -> None:
    made = probe_manifests("image", ["ml", "research"])
    (mount,) = pod_of()["containers"][0]["volumeMounts"]
    assert mount == {"name": "socket", "mountPath": PROBE_FOLDER}
    for namespace in ("ml", "research"):
        volume, claim = made[f"volume-{namespace}"], made[f"claim-{namespace}"]
        assert [volume["spec"]["hostPath"]] == [each["hostPath"] for each in pod_of()["volumes"]]
        assert volume["spec"]["claimRef"] == {"namespace": namespace, "name": PROBE_CLAIM}
        assert claim["metadata"]["namespace"] == namespace
        assert claim["metadata"]["name"] == PROBE_CLAIM
        assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
        for field in ("accessModes", "storageClassName"):
            assert claim["spec"][field] == volume["spec"][field]
    names = [made[f"volume-{namespace}"]["metadata"]["name"] for namespace in ("ml", "research")]
    assert len(set(names)) == 2


@pytest.mark.parametrize("privileged", [False, True])
def test_kubernetes_takes_them(privileged: bool) -> None:
    assert_valid(probe_manifests("image", ["ml", "research"], privileged, "s").values())
