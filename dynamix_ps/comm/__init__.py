"""Data planes as a worker uses them. Which ones there are: `dynamix_ps/data_planes.py`.

base           Comm: the interface, sums of flat buffers over all workers
local          one worker, no network
ring           ring all-reduce over gloo
byteps         parameter servers of BytePS
torch_buffers  what data planes for torch share: buffers are torch tensors
elastic_job    whether workers and servers of this job come and go
plane          what the control plane needs of a data plane that goes on when a worker is lost
peer_watch     a thread that sees which connections of such a plane have closed
link_rate      the rate of a link, and from how many bytes on a sum is worth its cost there
peers          connections between two workers, for what is no sum
followed_sums  sums that a worker follows until it takes part in them
catching_up    whether such a worker has caught up with the others
state_stream   the state of the training, and what else goes from one worker to another
"""

from __future__ import annotations

import importlib

from dynamix_ps.comm.base import Comm
from dynamix_ps.data_planes import DATA_PLANES, planes_for
from dynamix_ps.errors import EnvironmentNotReady

__all__ = ["Comm", "open_comm"]


def open_comm(name: str, framework: str = "torch") -> Comm:
    """Make the data plane called `name`. Imports its implementation, and with it the framework.

    Args:
        name: a key of DATA_PLANES.
        framework: whose arrays it sums.

    Raises:
        ValueError: there is no such data plane.
        EnvironmentNotReady: it does not sum arrays of this framework.
    """
    plane = DATA_PLANES.get(name)
    if plane is None:
        raise ValueError(f"unknown data plane {name!r}, expected one of {', '.join(DATA_PLANES)}")
    if framework not in plane.implementations:
        summed = list(plane.implementations)
        raise EnvironmentNotReady(
            f"comm: {name} sums arrays of {', '.join(summed)}, and this worker computes with {framework}.\n"
            f"Next: use comm: {' or '.join(planes_for(framework))}, or the hook for {' or '.join(summed)}"
        )
    module, _, function = plane.implementations[framework].partition(":")
    comm: Comm = getattr(importlib.import_module(module), function)()
    return comm
