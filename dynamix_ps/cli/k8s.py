"""`dynamix k8s`: the manifests that run a job in Kubernetes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from dynamix_ps.cli.launch import JobChoice, cluster_file, job_options, with_overrides
from dynamix_ps.cli.manifest_files import write_manifests
from dynamix_ps.cli.options.one_value import one_value
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.resolve import resolved
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.launch.targets.kubernetes.job_secret import NAME, JobSecret
from dynamix_ps.launch.targets.kubernetes.manifests import Kind, manifests
from dynamix_ps.launch.targets.kubernetes.pod_template import CLUSTER_FILE, RUN_DIR, JobOptions
from dynamix_ps.launch.targets.kubernetes.pods import pod_groups, times, with_addresses, with_hosts
from dynamix_ps.policy.registry import findings


@dataclass(frozen=True, slots=True)
class PodChoice:
    """What the command line says about the pods of a job."""

    image: str
    name: str | None
    namespace: str | None
    claim: str | None
    memory: str | None
    shm: str
    nodes: tuple[str, ...]
    restarts: int
    pull_secret: str | None
    pull_always: bool
    probe: bool


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@cluster_file(required=True)
@job_options
@one_value("pods", PodChoice)
@click.option("--image", required=True, help="Image with this package, BytePS and the script; see docker/Dockerfile.")
@click.option(
    "--kind",
    type=click.Choice(["jobset", "trainjob"]),
    default="jobset",
    show_default=True,
    help="What runs it: JobSet, or Trainer of Kubeflow.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="New folder for a file each, instead of the output.")
@click.option("--name", help="Name of the job, instead of `name` in the file.")
@click.option("--namespace", help="Namespace of everything.")
@click.option("--claim", help="PersistentVolumeClaim for run folders; without one they go with the launcher's pod.")
@click.option("--memory", help="Memory of each worker, such as 4Gi. Unset: no limit.")
@click.option("--shm", default="2Gi", show_default=True, help="Size of /dev/shm in each pod, part of its memory.")
@click.option(
    "--node", "nodes", multiple=True, metavar="HOST:LABEL=VALUE", help="Label of the nodes for a host of the file."
)
@click.option("--restarts", type=click.IntRange(0, 1000), default=0, show_default=True, help="Starts after a failure.")
@click.option("--pull-secret", help="Secret with the password of the image's registry.")
@click.option("--pull-always", is_flag=True, help="Nodes ask for the image each time.")
@click.option("--probe", is_flag=True, help="Use the network probe of the nodes; see `dynamix probe manifest`.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def command(
    config_file: Path,
    job: JobChoice,
    pods: PodChoice,
    kind: Kind,
    out: Path | None,
    cmd: tuple[str, ...],
) -> int:
    """Check a cluster file, and write the manifests that run it in Kubernetes, for `kubectl apply -f`.

    Each host of the file is a pod, or each worker where it names none. `--resume` and `--run-dir` are paths in the pod
    of the launcher. CMD is what every worker runs, as in `dynamix launch`; its files are in the image. Among the
    manifests is a Secret with new keys for the job: let nobody else read it.

    \b
    Example:
      dynamix k8s -c cluster.yaml --image registry/train:1 -- python train.py | kubectl apply -f -
    """
    config = with_overrides(load_config(config_file, findings), None, job.policy, job.mode, cmd, insecure=job.insecure)
    if not config.command:
        raise UsageError("no command for the workers; give it after `--`, or as `command:` in the cluster file")
    if config.sync != "none":
        raise UsageError(f"sync: {config.sync}: in Kubernetes the code is in the image; set sync: none")
    options = JobOptions(
        name=pods.name or config.name,
        image=pods.image,
        namespace=pods.namespace,
        pull_secret=pods.pull_secret,
        pull_always=pods.pull_always,
        claim=pods.claim,
        run_dir=job.run_dir or RUN_DIR,
        resume=None if job.resume is None else str(job.resume),
        shm=times(pods.shm, 1),
        restarts=pods.restarts,
        probe=pods.probe,
    )
    if not options.run_dir.startswith("/"):
        raise UsageError(
            f"--run-dir: {job.run_dir!r}: a volume is mounted there, so give the whole path, such as /runs"
        )
    config = with_hosts(config)
    groups = pod_groups(config, options.name, pods.memory, _labels(pods.nodes))
    secret = JobSecret(secrets.token_hex(32), Authority(time.time()).issue(NAME)).files
    secret[CLUSTER_FILE] = dump_config(with_addresses(resolved(config), groups, options.run_dir))
    made = manifests(kind, options, groups, secret)
    write_manifests(made, out)
    return 0


def _labels(words: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    labels: dict[str, dict[str, str]] = {}
    for word in words:
        host, colon, label = word.partition(":")
        key, equals, value = label.partition("=")
        if not (host and colon and key and equals):
            raise UsageError(f"--node: {word!r}; expected HOST:LABEL=VALUE, such as fast:gpu=a100")
        labels.setdefault(host, {})[key] = value
    return labels
