"""Every change to the BytePS sources, by the fault that it corrects.

An edit is short: our C++ functions are in files of sources/, which edits add and call. In reading order:

base           one change: file, old text, new text and reason
toolchain      what present compilers, Python and torch need to build BytePS
shared_memory  segment names that allow several workers on one host; nothing of a worker is open to other users
torch_waiting  the torch plugin: waiting without the GIL, with a time limit
mxnet_plugin   the MXNet plugin: a tensor is not freed too early; functions return what Python expects
transport      plain TCP instead of ZeroMQ, for those who know the run's token
members        workers and servers that come later, are lost, or come in the place of others
scheduler      a scheduler that is started again learns who the others are
requests       requests that are answered take no memory
stages         threads without work sleep
direct         tensors in host memory skip the stages
server         correct sums, no races, fewer threads
exchange       the sums of our own data plane
key_hashes     the choice of a server for a key
python_side    BytePS's Python files
"""

from __future__ import annotations

from typing import Literal

from dynamix_ps.byteps_build.edits import (
    direct,
    exchange,
    key_hashes,
    members,
    mxnet_plugin,
    python_side,
    requests,
    scheduler,
    server,
    shared_memory,
    stages,
    toolchain,
    torch_waiting,
    transport,
)
from dynamix_ps.byteps_build.edits.base import Edit, apply_edits

__all__ = ["Edit", "Variant", "apply_edits", "for_variant"]

Variant = Literal["ours", "stock"]


def for_variant(variant: Variant) -> tuple[Edit, ...]:
    """The edits of a variant, in order. `stock` has only those needed to build BytePS and run it on one host."""
    needed = toolchain.EDITS + shared_memory.NAMES
    if variant == "stock":
        return needed
    return (
        needed
        + shared_memory.PRIVATE
        + torch_waiting.EDITS
        + mxnet_plugin.EDITS
        + transport.EDITS
        + members.EDITS
        + scheduler.EDITS
        + requests.EDITS
        + stages.EDITS
        + direct.EDITS
        + server.EDITS
        + exchange.EDITS
        + key_hashes.EDITS
        + python_side.EDITS
    )
