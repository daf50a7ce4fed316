"""`dynamix agent`: the agent of a host that nothing else starts, such as a pod."""

from __future__ import annotations

from pathlib import Path

import click

from dynamix_ps.config import variables
from dynamix_ps.launch.targets.kubernetes.listening_agent import DEFAULT_PORT, serve


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--secret",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar=variables.PODS_SECRET,
    help="Folder with the secret of the job: token, ca.crt, tls.crt, tls.key.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Where it listens."
)
def command(secret: Path, port: int) -> int:
    """Wait for the launcher of a job, do what it says, and end with its run. The manifests of `dynamix k8s` use it.

    Whoever connects needs certificate and token of the job; the first one that has both is the launcher. If it is gone,
    everything that it has started ends within 10 s, and this command ends with exit code 3.
    """
    return serve(port, secret)
