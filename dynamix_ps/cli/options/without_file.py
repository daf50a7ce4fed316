"""Options of a job without a cluster file, and the configuration that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.cli.init import speeds_of
from dynamix_ps.cli.options.one_value import Command, one_value
from dynamix_ps.config.schema import Config
from dynamix_ps.config.without_file import config_without_file
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import UsageError

ORIGIN = "command line"
BATCH = 64


def bounds_of(text: str) -> tuple[int, int]:
    """`8,512` as smallest and largest size. Raises BadParameter."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"got {text!r}, expected the smallest and the largest size, such as 8,512")
    return int(parts[0]), int(parts[1])


@dataclass(frozen=True, slots=True)
class WorkersChoice:
    """What the command line says in place of a cluster file. `workers` is None where there is one."""

    workers: int | None
    batch: int | None
    bounds: tuple[int, int] | None
    speeds: tuple[float, ...] | None
    comm: str | None

    @property
    def is_given(self) -> bool:
        """Whether the command line says any of this."""
        return any((self.workers, self.batch, self.bounds, self.speeds, self.comm))

    def config(self, policy: str | None, command: Sequence[str]) -> Config:
        """Raises UsageError where the number of workers is missing, ConfigError for what does not fit together."""
        speeds = self.speeds or (1.0,) * (self.workers or 0)
        if not speeds:
            raise UsageError("no cluster file: give one with -c, or the number of workers with -n")
        if self.workers is not None and len(speeds) != self.workers:
            raise UsageError(f"got {len(speeds)} speeds for {self.workers} workers, expected one per worker")
        return config_without_file(
            (self.batch or BATCH,) * len(speeds),
            ORIGIN,
            comm=self.comm or ("byteps" if installed_info().version else "gloo"),
            bounds=self.bounds,
            policy=policy,
            speeds=speeds,
            command=command,
        )


_OPTIONS = (
    click.option("-n", "workers", type=click.IntRange(1, 1024), help="Number of workers, without a cluster file."),
    click.option(
        "--batch", type=click.IntRange(1), help=f"With -n: first batch size of every worker. Default: {BATCH}."
    ),
    click.option(
        "--bounds",
        type=bounds_of,
        metavar="LEAST,MOST",
        help="With -n: smallest and largest batch size. Default: a quarter of --batch, and four times as much.",
    ),
    click.option(
        "--speeds",
        metavar="SPEEDS",
        type=speeds_of,
        help="In place of -n, or with it: emulated speed of each worker, such as 1,0.5.",
    ),
    click.option(
        "--comm",
        type=click.Choice(tuple(DATA_PLANES)),
        help="With -n: data plane. Default: byteps where it is installed, else gloo.",
    ),
)


def workers_options(command: Command) -> Command:
    """The options of a job without a cluster file; the command gets them as `own`."""
    command = one_value("own", WorkersChoice)(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def in_words(config: Config) -> str:
    """What was chosen, in one line."""
    first, (low, high) = config.initial_sizes()[0], config.bounds(0)
    return (
        f"{len(config.cluster.workers)} workers over {config.comm}: first size {first} each (--batch), from {low} to "
        f"{high} (--bounds), policy {config.policy.name} (--policy)"
    )
