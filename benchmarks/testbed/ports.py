"""A free TCP port of this machine."""

from __future__ import annotations

import random

from dynamix_ps.config.schema import Cluster, WorkerSection
from dynamix_ps.launch.roles.ports import choose_ports


def free_port() -> int:
    """A TCP port that nobody listens on now and no outgoing connection, of a test beside this one say, can take."""
    return choose_ports(Cluster(workers=(WorkerSection(),)), random.Random())[0]
