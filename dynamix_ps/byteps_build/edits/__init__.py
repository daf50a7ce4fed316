"""Every change made to the BytePS sources, by what it cures."""

from __future__ import annotations

from typing import Literal

from dynamix_ps.byteps_build.edits import (
    direct,
    mxnet_waiting,
    python_side,
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
    """The edits of a variant, in order. `stock` has what is needed to build it and to run it on one host."""
    needed = toolchain.EDITS + shared_memory.EDITS
    if variant == "stock":
        return needed
    return (
        needed
        + torch_waiting.EDITS
        + mxnet_waiting.EDITS
        + transport.EDITS
        + stages.EDITS
        + direct.EDITS
        + server.EDITS
        + python_side.EDITS
    )
