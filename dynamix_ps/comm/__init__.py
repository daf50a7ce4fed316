"""Data planes as a worker uses them. Which ones there are: `dynamix_ps/data_planes.py`.

In reading order:

    base               Comm: the interface, sums of flat buffers over all workers
    local              one worker, no network
    torch_buffers      what data planes for torch share: buffers are torch tensors
    ring_group         a ring over gloo for one generation of its members
    store_watch        whether the processes of a ring live, by their stores
    ring_sums          the buffers of a worker in sums over it, and the sums that it keeps
    ring_rounds        its rounds, which can be given up beside training
    elastic_ring       its rounds go on in a new ring when a worker is lost or leaves
    gloo               ring all-reduce by torch.distributed
    byteps             what BytePS's plugins for all frameworks share
    device_buffers     buffers on a GPU: copied to the host, summed there, copied back
    byteps_torch       BytePS for torch
    byteps_mxnet       BytePS for MXNet
    links              how fast the hosts' links are, measured at the start
    placement          which server has which piece of a buffer
    segments           memory that processes of one host share
    plane              what the control plane needs of one that goes on when a worker is lost
    host_memory        buffers in segments: who maps them, and who sums there
    server_watch       whether the servers live for which a worker waits
    elastic            sums that go on when a worker or a server is lost
    exchange           the C functions of our BytePS that make the sums
    peers              connections between two workers, for what is no sum
    followed_sums      sums for a worker that is to enter, which follows the others until it has caught up
    state_stream       the state of the training on its way from one worker to another
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
    module, _, class_name = plane.implementations[framework].partition(":")
    comm: Comm = getattr(importlib.import_module(module), class_name)()
    return comm
