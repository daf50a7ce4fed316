"""The data planes: how gradients of all workers become one sum. One value describes each; nothing else knows a name.

To add one: a line in `DATA_PLANES`, and what makes a `dynamix_ps.comm.Comm` per framework. This module imports
neither torch nor BytePS; `dynamix_ps.comm.open_comm` imports an implementation when a worker needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FRAMEWORKS = ("torch", "mxnet")


@dataclass(frozen=True, slots=True)
class DataPlane:
    """One data plane, named as `comm` in a cluster file.

    Which devices it sums on depends on how its library was built, so the implementation finds that out when it starts.
    """

    name: str
    implementations: Mapping[str, str]  # by framework of the worker: `package.module:name`, which makes a Comm
    has_servers: bool = False  # BytePS's scheduler and servers sum, and so BytePS must be installed
    is_ring: bool = False  # workers pass sums around: no worker is faster than the slowest link
    most_workers: int | None = None  # none: no limit

    @property
    def uses_network(self) -> bool:
        return self.most_workers != 1

    @property
    def home_role(self) -> str:
        """Name of the role whose host the other roles connect to; the arbitrator is there too."""
        return "scheduler" if self.has_servers else "worker-0"


_PLANES = (
    DataPlane(
        "byteps",
        {
            "torch": "dynamix_ps.comm.byteps.torch_comm:torch_comm",
            "mxnet": "dynamix_ps.comm.byteps.mxnet_comm:mxnet_comm",
        },
        has_servers=True,
    ),
    DataPlane("gloo", {"torch": "dynamix_ps.comm.ring.gloo:GlooComm"}, is_ring=True),
    DataPlane("local", dict.fromkeys(FRAMEWORKS, "dynamix_ps.comm.local:LocalComm"), most_workers=1),
)
DATA_PLANES: dict[str, DataPlane] = {plane.name: plane for plane in _PLANES}


WITHOUT_BUILD = "gloo"  # what trains where BytePS is not built


def planes_for(framework: str) -> list[str]:
    """Names of the data planes for several workers that sum this framework's arrays."""
    return [plane.name for plane in DATA_PLANES.values() if plane.uses_network and framework in plane.implementations]
