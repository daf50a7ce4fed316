"""Workers of different speed on one machine: by CPU quota where permitted, otherwise by a slow-down in the hook.

A worker of speed s gets s * core_share cores, with core_share = min(1, (cores - RESERVED_CORES) / sum of speeds)
(chosen by us). So speed 1 is a whole core if the machine has enough cores. On a small machine all workers shrink by
the same factor, and RESERVED_CORES remain for server, scheduler and arbitrator; otherwise they would slow down the
sum of all workers. A quota limits the mean over a period: the first milliseconds of work after a wait run at full
speed, so in short iterations the compute times differ less than the speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.emulation.cpu_quota import GROUP_PREFIX, CpuController, find_controller

RESERVED_CORES = 0.4
_LEAST_CORES = 0.1  # for all workers together, on a machine smaller than the reserve


@dataclass(frozen=True, slots=True)
class Emulation:
    """How one run makes its workers differ in speed, on one host."""

    method: Literal["cgroup", "hook", "none"]
    description: str  # for the summary
    speeds: tuple[float, ...]  # of all workers of the job
    cores: tuple[float, ...] = ()  # quota per worker of `ranks`, method cgroup
    controller: CpuController | None = None
    groups: tuple[Path, ...] = ()  # per worker of `ranks`, method cgroup
    ranks: tuple[int, ...] = ()  # of the workers on this host, method cgroup

    @property
    def slowdowns(self) -> tuple[float, ...] | None:
        """The factor by which the hook stretches compute time, per worker of the job; None with another method."""
        return tuple(1 / speed for speed in self.speeds) if self.method == "hook" else None

    def create(self) -> None:
        """Make the groups without a limit, so that workers start at full speed.

        Raises:
            EnvironmentNotReady: the kernel refused.
        """
        if self.controller is not None:
            for group in self.groups:
                try:
                    self.controller.create(group.name)
                except OSError as error:
                    raise EnvironmentNotReady(f"emulation: cannot create {group}: {error.strerror}") from error

    def change(self, speeds: Sequence[float]) -> None:
        """Set these speeds, one per worker of the job, on the scale of the planned ones; empty: the planned ones.

        Raises:
            EnvironmentNotReady: the kernel refused, or speeds other than the planned ones do not come from quotas.
        """
        if self.controller is None:
            if not speeds:
                return
            raise EnvironmentNotReady(
                f"emulation: speeds that change while training runs need CPU quotas (root, cgroups), got {self.method}"
            )
        now = zip(self.cores, self.ranks, strict=True)
        quotas = [cores * speeds[rank] / self.speeds[rank] for cores, rank in now] if speeds else self.cores
        for group, cores in zip(self.groups, quotas, strict=True):
            try:
                self.controller.limit(group, cores)
            except OSError as error:
                raise EnvironmentNotReady(f"emulation: cannot limit {group}: {error.strerror}") from error


def choose_emulation(config: Config, run_id: str, cores: float, ranks: Sequence[int] | None = None) -> Emulation:
    """Choose the method. Creates nothing, apart from a short trial of the permissions.

    Args:
        cores: of this host.
        ranks: of the workers on this host; None: all of the job.

    Raises:
        EnvironmentNotReady: `emulation: cgroup` where control groups are not permitted.
    """
    speeds = tuple(worker.speed for worker in config.cluster.workers)
    asked = config.emulation
    if asked == "none" or (asked == "auto" and len(set(speeds)) == 1):
        return Emulation("none", "none: every worker runs as fast as the machine lets it", speeds)
    why = ""
    if asked != "hook":
        controller = find_controller()
        if controller.usable:
            return by_quota(controller, speeds, run_id, cores, ranks)
        why = f" (no cgroup: {controller.problem})"
        if asked == "cgroup":
            raise EnvironmentNotReady(
                f"emulation: cgroup is not permitted here: {controller.problem}; "
                "run as root or in a delegated cgroup, or set emulation: auto"
            )
    factors = ", ".join(f"{1 / speed:.3g}x" for speed in speeds)
    return Emulation("hook", f"slow-down in the hook: {factors} compute time{why}", speeds)


def by_quota(
    controller: CpuController, speeds: Sequence[float], run_id: str, cores: float, ranks: Sequence[int] | None = None
) -> Emulation:
    """CPU quotas for the workers `ranks`, all if None, on a machine with `cores` cores. `speeds`: of all workers."""
    here = tuple(range(len(speeds)) if ranks is None else ranks)
    quotas = core_quotas([speeds[rank] for rank in here], cores) if here else ()
    groups = tuple(controller.parent / f"{GROUP_PREFIX}{run_id}-w{rank}" for rank in here)
    shown = ", ".join(f"{quota:.2f}" for quota in quotas) or "no"
    text = f"cgroup v{controller.version} CPU quota: {shown} cores"
    return Emulation("cgroup", text, tuple(speeds), quotas, controller, groups, here)


def core_quotas(speeds: Sequence[float], cores: float) -> tuple[float, ...]:
    """Cores of each worker, by the rule at the top of this file."""
    share = min(1.0, max(cores - RESERVED_CORES, _LEAST_CORES) / sum(speeds))
    return tuple(speed * share for speed in speeds)
