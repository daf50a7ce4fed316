"""Builds BytePS from its PyPI source package, for this machine or for others, and corrects its faults.

In reading order:

  build      from the source package to an installed BytePS
  recipe     what goes into a build, and the cache key
  pip        how pip is run, also where the environment has none
  source     the pinned source package
  edits      every change to the BytePS sources
  sources    a file that is added to the BytePS sources
  headers    replacements for headers of CUDA and torch
  toolchain  what a build needs from this machine
  cpu_level  the CPU that a wheel for other hosts needs
  cuda       where the CUDA toolkit and NCCL are
  wheels     joins the wheels of several plugins
  cache      built wheels, one build at a time
  install    installs a wheel, and reads what is installed
  progress   shows a build while it runs
"""

from __future__ import annotations

from dynamix_ps.byteps_build.install import InstalledInfo, installed_info

__all__ = ["InstalledInfo", "installed_info"]
