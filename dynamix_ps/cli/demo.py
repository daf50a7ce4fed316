"""`dynamix demo`: a training on three uneven workers of this machine, which needs torch and nothing else."""

from __future__ import annotations

import sys
from typing import Any

import click

from dynamix_ps import shipped
from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.config.schema import Config
from dynamix_ps.data_planes import WITHOUT_BUILD
from dynamix_ps.launch.job.run import run_job
from dynamix_ps.terminal import make_console

SPEEDS = (1.0, 0.5, 0.25)
_BATCH = 64


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--run-dir", default="runs", show_default=True, help="Folder for the folder of the run.")
def command(run_dir: str) -> int:
    """Train a small network on three workers of this machine, of which two are slowed down.

    The workers begin with equal batch sizes. A policy gives each worker its own, and the summary says what that gained.
    The script draws its data itself: see `dynamix examples torch_shapes`.
    """
    console = make_console()
    return run_job(demo(run_dir), sys.argv, None, console, waits=not console.is_terminal)


def demo(run_dir: str) -> Config:
    """The job: over BytePS where it is built, else over a ring."""
    values: dict[str, Any] = {
        "name": "demo",
        "run_dir": run_dir,
        "seed": 1,
        "cluster": {"workers": tuple({"batch": _BATCH, "speed": speed} for speed in SPEEDS)},
        "comm": Config.model_fields["comm"].default if installed_info().version else WITHOUT_BUILD,
        "batch": {"min": 8, "max": 4 * _BATCH},
        "window": 10,
        "policy": {"name": "ppo"},
        "command": ("python", str(shipped.examples()["torch_shapes"])),
    }
    return Config.model_validate(values)
