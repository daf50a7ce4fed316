"""Data planes. `open_comm` picks one by the name used in the YAML."""

from __future__ import annotations

from dynamix_ps.comm.base import Comm

__all__ = ["Comm", "open_comm"]


def open_comm(name: str) -> Comm:
    """Make the data plane called `name` ("byteps", "gloo" or "local"); heavy imports happen only here."""
    if name == "byteps":
        from dynamix_ps.comm.byteps import BytePSComm

        return BytePSComm()
    if name == "gloo":
        from dynamix_ps.comm.gloo import GlooComm

        return GlooComm()
    if name == "local":
        from dynamix_ps.comm.local import LocalComm

        return LocalComm()
    raise ValueError(f"unknown data plane {name!r}, expected 'byteps', 'gloo' or 'local'")
