"""Where the roles of a run are, and what changes around them while they train. By default: here, and nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Protocol

from dynamix_ps.config.schema import Cluster
from dynamix_ps.launch.emulate import Emulation
from dynamix_ps.launch.plan import RoleSpec
from dynamix_ps.launch.ports import choose_ports


class Placement(Protocol):
    """What a test bed gives the launcher: addresses, places and a schedule."""

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        """Of the scheduler and the arbitrator, free where these two are. Raises EnvironmentNotReady."""
        ...

    def place(self, role: RoleSpec) -> RoleSpec:
        """The role with a command line that starts it where it belongs, and the address it has there."""
        ...

    def tick(self, trained_s: float, emulation: Emulation) -> None:
        """Called again and again while all workers train; `trained_s` leaves out evaluations and checkpoints.

        Raises EnvironmentNotReady when a change is refused.
        """
        ...


class ThisMachine:
    """All roles beside the launcher, at `cluster.host`."""

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        return choose_ports(cluster, random.Random())

    def place(self, role: RoleSpec) -> RoleSpec:
        return role

    def tick(self, trained_s: float, emulation: Emulation) -> None:
        """Nothing changes."""


def inside(role: RoleSpec, prefix: tuple[str, ...], address: str) -> RoleSpec:
    """A role that `prefix` starts on a host of its own, where it has this address."""
    return replace(role, argv=(*prefix, *role.argv), env={**role.env, "DMLC_NODE_HOST": address})
