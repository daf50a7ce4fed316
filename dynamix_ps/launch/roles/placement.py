"""Where the roles of a run are, and what changes around them while they train. By default all are on this machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from dynamix_ps.config.schema import Cluster
from dynamix_ps.launch.roles.plan import RoleSpec
from dynamix_ps.launch.roles.ports import choose_ports


class Speeds(Protocol):
    """The emulated speeds of a run's workers."""

    def change(self, speeds: Sequence[float]) -> None:
        """Set other speeds, one per worker, on the scale of the planned ones; empty: the planned ones.

        Raises DynamixError on refusal.
        """
        ...


class Placement(Protocol):
    """Where the launcher starts roles: addresses, hosts, and a schedule of changes."""

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        """Free ports for scheduler and arbitrator, on their host. Raises EnvironmentNotReady."""
        ...

    def place(self, role: RoleSpec) -> RoleSpec:
        """The role, with the command line that starts it on its host, and its address there."""
        ...

    def tick(self, trained_s: float, speeds: Speeds) -> None:
        """Called regularly while all workers train. `trained_s` is without evaluations and checkpoints.

        Raises EnvironmentNotReady when a change is refused.
        """
        ...


class ThisMachine:
    """All roles beside the launcher, at `cluster.host`."""

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        return choose_ports(cluster, random.Random())

    def place(self, role: RoleSpec) -> RoleSpec:
        return role

    def tick(self, trained_s: float, speeds: Speeds) -> None:
        """Nothing changes."""


def inside(role: RoleSpec, prefix: tuple[str, ...], address: str) -> RoleSpec:
    """The role, as `prefix` starts it on another host, where it has this address."""
    return replace(role, argv=(*prefix, *role.argv), env={**role.env, "DMLC_NODE_HOST": address})
