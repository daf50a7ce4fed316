"""Data planes. `open_comm` picks one by the name used in the YAML and by what the worker computes with."""

from __future__ import annotations

from dynamix_ps.comm.base import Comm
from dynamix_ps.errors import EnvironmentNotReady

__all__ = ["Comm", "open_comm"]


def open_comm(name: str, framework: str = "torch") -> Comm:
    """Make the data plane called `name` ("byteps", "gloo" or "local"); heavy imports happen only here.

    Args:
        framework: whose arrays it is to sum, "torch" or "mxnet".

    Raises EnvironmentNotReady where the two do not go together.
    """
    if name == "local":
        from dynamix_ps.comm.local import LocalComm

        return LocalComm()
    if name == "byteps" and framework == "mxnet":
        from dynamix_ps.comm.byteps_mxnet import MXNetBytePSComm

        return MXNetBytePSComm()
    if name == "byteps":
        from dynamix_ps.comm.byteps_torch import TorchBytePSComm

        return TorchBytePSComm()
    if name == "gloo" and framework == "mxnet":
        raise EnvironmentNotReady(
            "comm: gloo is torch's ring all-reduce, and this worker computes with MXNet.\n"
            "Next: use comm: byteps, or the hook for torch"
        )
    if name == "gloo":
        from dynamix_ps.comm.gloo import GlooComm

        return GlooComm()
    raise ValueError(f"unknown data plane {name!r}, expected 'byteps', 'gloo' or 'local'")
