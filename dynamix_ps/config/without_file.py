"""The configuration of a job without a cluster file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from dynamix_ps.config.load import check_rules
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, WorkerSection
from dynamix_ps.errors import ConfigError

ROOM = 4  # a size may shrink and grow by this factor, where nobody sets bounds


def config_without_file(
    sizes: Sequence[int],
    origin: str,
    *,
    comm: str,
    bounds: tuple[int, int] | None = None,
    policy: str | None = None,
    speeds: Sequence[float] | None = None,
    command: Sequence[str] = (),
) -> Config:
    """All that is not given has its default.

    Args:
        sizes: first size of each worker, in samples.
        origin: what has given them, for errors.
        bounds: smallest and largest size of every worker; None: a ROOMth of the smallest first size, and ROOM times the
            largest.
        policy: its name.
        speeds: to emulate, one per worker.

    Raises ConfigError if a value is wrong, or breaks a rule between keys.
    """
    low, high = bounds or (max(1, min(sizes) // ROOM), max(sizes) * ROOM)
    outside = sorted({size for size in sizes if not low <= size <= high})
    if outside and low <= high:
        found = ", ".join(map(str, outside))
        raise ConfigError(f"{origin}: a worker begins with {found} samples per batch, expected {low} to {high}")
    workers = zip(sizes, speeds or (1.0,) * len(sizes), strict=True)
    given: dict[str, Any] = {"policy": {"name": policy}} if policy else {}
    try:
        config = Config(
            cluster=Cluster(workers=tuple(WorkerSection(batch=size, speed=speed) for size, speed in workers)),
            batch=BatchBounds(min=low, max=high),
            comm=comm,
            command=tuple(command),
            **given,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{origin}: {where}: {first['msg']} (got {first['input']!r})") from None
    return check_rules(config, origin)
