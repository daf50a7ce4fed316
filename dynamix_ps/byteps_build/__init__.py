"""Builds BytePS from its PyPI source package for this machine, with or without a GPU, and cures it on the way."""

from __future__ import annotations

from dynamix_ps.byteps_build.install import InstalledInfo, installed_info

__all__ = ["InstalledInfo", "installed_info"]
