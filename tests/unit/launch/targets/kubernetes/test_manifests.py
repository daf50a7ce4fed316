"""The manifests of a job: what Kubernetes, JobSet and Trainer read in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.launch.targets.kubernetes.manifests import Kind, manifests
from dynamix_ps.launch.targets.kubernetes.pod_template import JobOptions, Manifest
from dynamix_ps.launch.targets.kubernetes.pods import pod_groups, with_hosts
from tests.manifest_schemas import assert_valid
from tests.pod_security import violations

KINDS: tuple[Kind, ...] = ("jobset", "trainjob")
HOSTS = {"slow": {"slots": 1}, "fast": {"slots": 2, "devices": (0, 1)}, "same": {"slots": 1}}
SECRET = {"token": "t", "ca.crt": "a", "tls.crt": "c", "tls.key": "k", "cluster.yaml": "name: t\n"}


def made(kind: Kind = "jobset", workers: int = 4, hosts: Any = HOSTS, **options: Any) -> dict[str, Manifest]:
    config = with_hosts(Config.model_validate({"cluster": {"hosts": hosts, "workers": ({},) * workers}}))
    return manifests(kind, JobOptions("train", "registry/train:1", **options), pod_groups(config, "train"), SECRET)


def job_set(found: dict[str, Manifest]) -> Manifest:
    if "jobset" in found:
        return found["jobset"]["spec"]
    return found["training-runtime"]["spec"]["template"]["spec"]


def jobs(found: dict[str, Manifest]) -> dict[str, Manifest]:
    return {each["name"]: each["template"]["spec"] for each in job_set(found)["replicatedJobs"]}


def pods(found: dict[str, Manifest]) -> dict[str, Manifest]:
    return {name: job["template"]["spec"] for name, job in jobs(found).items()}


def containers(pod: Manifest) -> Iterator[Manifest]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_group_of_pods_is_an_indexed_job(kind: Kind) -> None:
    found = jobs(made(kind, workers=3, hosts={}))
    assert {name: job["completions"] for name, job in found.items()} == {"launcher": 1, "agents-1": 2}
    for job in found.values():
        assert job["completionMode"] == "Indexed"
        assert job["parallelism"] == job["completions"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_runs_launch_and_the_others_agents(kind: Kind) -> None:
    found = pods(made(kind))
    launcher = found["launcher"]["containers"][0]
    assert [*launcher["command"], *launcher["args"]] == ["dynamix", "launch", "-c", "/etc/dynamix/cluster.yaml"]
    for name in ("agents-1", "agents-2"):
        agent = found[name]["containers"][0]
        assert [*agent["command"], *agent["args"]] == ["dynamix", "agent", "--secret", "/etc/dynamix"]
        assert "env" not in agent
    (waiting,) = found["launcher"]["initContainers"]
    assert waiting["command"] == ["python", "-m", "dynamix_ps.launch.targets.kubernetes.allocation"]
    assert waiting["workingDir"] == "/"
    others = "fast=train-agents-1-0-0.train:2,same=train-agents-2-0-0.train:1"
    assert waiting["env"] == [{"name": "DYNAMIX_PODS", "value": others}]
    assert launcher["env"] == [
        {"name": "DYNAMIX_PODS", "value": f"slow=train-launcher-0-0.train:1,{others}"},
        {"name": "DYNAMIX_PODS_SECRET", "value": "/etc/dynamix"},
    ]


def test_a_single_pod_has_nothing_to_wait_for_and_no_pods_to_reach() -> None:
    found = pods(made(workers=2, hosts={"only": {"slots": 2}}))
    assert list(found) == ["launcher"]
    assert "initContainers" not in found["launcher"]
    assert found["launcher"]["containers"][0]["env"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_pods_are_those_of_the_headless_service(kind: Kind) -> None:
    found = made(kind)
    service = found["service"]
    assert service["metadata"]["name"] == job_set(found)["network"]["subdomain"] == "train"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for job in jobs(found).values():
        assert service["spec"]["selector"].items() <= job["template"]["metadata"]["labels"].items()
    assert job_set(found)["network"]["enableDNSHostnames"] is True


def test_only_pods_of_the_job_reach_its_pods() -> None:
    policy = made()["network-policy"]["spec"]
    own = {"matchLabels": {"app.kubernetes.io/name": "dynamix", "app.kubernetes.io/instance": "train"}}
    assert policy == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_are_in_the_secret_alone_and_only_its_pods_read_it(kind: Kind) -> None:
    found = made(kind)
    assert found["secret"]["stringData"] == SECRET
    assert found["secret"]["type"] == "Opaque"
    for pod in pods(found).values():
        volume = next(each for each in pod["volumes"] if each["name"] == "secret")
        assert volume["secret"] == {"secretName": "train", "defaultMode": 0o440}
        assert pod["securityContext"]["fsGroup"] > 0
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            mount = next(each for each in container["volumeMounts"] if each["name"] == "secret")
            assert mount == {"name": "secret", "mountPath": "/etc/dynamix", "readOnly": True}


def test_pods_ask_for_what_their_roles_need() -> None:
    config = {"cluster": {"hosts": HOSTS, "workers": ({},) * 4}, "env": {"OMP_NUM_THREADS": "4"}}
    groups = pod_groups(with_hosts(Config.model_validate(config)), "train", "4Gi", {"fast": {"gpu": "a100"}})
    found = pods(manifests("jobset", JobOptions("train", "image"), groups, SECRET))
    assert found["launcher"]["containers"][0]["resources"] == {
        "requests": {"cpu": "5", "memory": "4Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert found["agents-1"]["containers"][0]["resources"] == {
        "requests": {"cpu": "9", "memory": "8Gi"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"},
    }
    assert found["agents-1"]["nodeSelector"] == {"gpu": "a100"}
    assert "nodeSelector" not in found["launcher"]
    assert pods(made(hosts={}))["launcher"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}


def test_shared_memory_is_a_volume_of_memory() -> None:
    for pod in pods(made(shm="8Gi")).values():
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


def test_run_folders_lie_in_a_claim_or_go_with_the_pod() -> None:
    pod = pods(made(claim="results", run_dir="/out", resume="/out/latest/checkpoints/a.pt"))["launcher"]
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "results"}} in pod["volumes"]
    assert {"name": "runs", "mountPath": "/out"} in pod["containers"][0]["volumeMounts"]
    assert pod["containers"][0]["args"][-2:] == ["--resume", "/out/latest/checkpoints/a.pt"]
    assert {"name": "runs", "emptyDir": {}} in pods(made())["launcher"]["volumes"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_decides_about_the_end_and_a_wrong_file_is_not_tried_again(kind: Kind) -> None:
    spec = job_set(found := made(kind, restarts=3))
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    assert spec["failurePolicy"]["maxRestarts"] == 3
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])  # else JobSet refuses it
    assert rule["targetReplicatedJobs"] == ["launcher"]
    launcher = jobs(found)["launcher"]
    (policy,) = launcher["podFailurePolicy"]["rules"]
    assert policy["action"] == "FailJob"
    assert policy["onExitCodes"]["values"] == [2]
    assert policy["onExitCodes"]["containerName"] == launcher["template"]["spec"]["containers"][0]["name"]
    for job in jobs(found).values():
        assert job["backoffLimit"] == 0
        assert job["template"]["spec"]["restartPolicy"] == "Never"  # which a podFailurePolicy needs
        assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_a_trainjob_has_a_runtime_of_its_own_and_changes_the_launcher_alone() -> None:
    found = made("trainjob", namespace="ml")
    runtime, job = found["training-runtime"], found["trainjob"]
    assert (runtime["kind"], runtime["apiVersion"]) == ("TrainingRuntime", "trainer.kubeflow.org/v1alpha1")
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": runtime["metadata"]["name"],
    }
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1}
    replicated = job_set(found)["replicatedJobs"]
    assert [each["replicas"] for each in replicated] == [1, 1, 1]
    label = "trainer.kubeflow.org/trainjob-ancestor-step"
    labels = [each["template"].get("metadata", {}).get("labels", {}).get(label) for each in replicated]
    assert labels == ["trainer", None, None]
    names = [[each["name"] for each in pod["containers"]] for pod in pods(found).values()]
    assert names == [["node"], ["agent"], ["agent"]]


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_job_has_its_name_and_namespace(kind: Kind) -> None:
    found = made(kind, namespace="ml")
    assert {each["metadata"]["name"] for each in found.values()} == {"train"}
    assert {each["metadata"]["namespace"] for each in found.values()} == {"ml"}
    assert all("namespace" not in each["metadata"] for each in made(kind).values())


def test_images_and_their_password() -> None:
    for pod in pods(made(pull_secret="registry", pull_always=True)).values():
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        for container in containers(pod):
            assert (container["image"], container["imagePullPolicy"]) == ("registry/train:1", "Always")
    for pod in pods(made()).values():
        assert "imagePullSecrets" not in pod
        assert all("imagePullPolicy" not in container for container in containers(pod))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"probe": True, "claim": "runs", "pull_secret": "s", "restarts": 1}])
def test_pods_pass_pod_security_restricted(kind: Kind, options: dict[str, Any]) -> None:
    for pod in pods(made(kind, **options)).values():
        assert violations(pod) == set()


BROKEN: tuple[tuple[str, Any, Any], ...] = (
    ("hostNetwork", (), {"hostNetwork": True}),
    ("hostPID", (), {"hostPID": True}),
    ("hostIPC", (), {"hostIPC": True}),
    ("volumes", (), {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
    ("sysctls", ("securityContext",), {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    ("runAsUser", ("securityContext",), {"runAsUser": 0}),
    ("runAsNonRoot", ("securityContext",), {"runAsNonRoot": False}),
    ("seccompProfile", ("securityContext",), {"seccompProfile": {"type": "Unconfined"}}),
    ("appArmorProfile", ("securityContext",), {"appArmorProfile": {"type": "Unconfined"}}),
    ("seLinuxOptions", ("securityContext",), {"seLinuxOptions": {"user": "root"}}),
    ("hostProcess", ("securityContext",), {"windowsOptions": {"hostProcess": True}}),
    ("runAsUser", ("containers", 0, "securityContext"), {"runAsUser": 0}),
    ("privileged", ("containers", 0, "securityContext"), {"privileged": True}),
    ("allowPrivilegeEscalation", ("initContainers", 0), {"securityContext": {"capabilities": {"drop": ["ALL"]}}}),
    ("capabilities", ("containers", 0, "securityContext"), {"capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}),
    ("capabilities", ("initContainers", 0, "securityContext"), {"capabilities": {}}),
    ("procMount", ("containers", 0, "securityContext"), {"procMount": "Unmasked"}),
    ("hostPort", ("containers", 0), {"ports": [{"containerPort": 1, "hostPort": 1}]}),
    ("host", ("containers", 0), {"livenessProbe": {"tcpSocket": {"host": "169.254.169.254", "port": 80}}}),
)


@pytest.mark.parametrize(("field", "path", "change"), BROKEN)
def test_a_pod_that_breaks_a_rule_of_pod_security_is_noticed(field: str, path: Any, change: Manifest) -> None:
    pod = pods(made())["launcher"]
    place: Any = pod
    for step in path:
        place = place[step]
    place.update(change)
    assert violations(pod) == {field}


def test_pods_use_the_probe_of_their_node_by_a_claim_if_told() -> None:
    assert "dynamix-probe" not in str(made())
    claim = {"name": "socket", "persistentVolumeClaim": {"claimName": "dynamix-probe", "readOnly": True}}
    for pod in pods(made(probe=True)).values():
        assert claim in pod["volumes"]
        mounts = pod["containers"][0]["volumeMounts"]
        assert {"name": "socket", "mountPath": "/run/dynamix", "readOnly": True} in mounts


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_jobset_and_trainer_take_them(kind: Kind) -> None:
    found = made(kind, claim="c", probe=True, pull_secret="s", pull_always=True, namespace="ml", restarts=1)
    assert_valid(found.values())


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("jobset", "service", ("spec", "selektor")),
        ("jobset", "jobset", ("spec", "sucessPolicy")),
        ("jobset", "jobset", ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "contaners")),
        ("trainjob", "training-runtime", ("spec", "mlPolicy", "nodes")),
        ("trainjob", "trainjob", ("spec", "runtime")),
    ],
)
def test_a_misspelt_key_is_noticed(kind: Kind, name: str, path: tuple[Any, ...]) -> None:
    found = made(kind)
    *above, key = path
    place: Any = found[name]
    for step in above:
        place = place[step]
    place[key] = "x"
    with pytest.raises((AssertionError, kubernetes_validate.ValidationError)):
        assert_valid(found.values())
