"""How fast the machine computes right now, to compare cells that ran hours or days apart.

A machine that shares its hardware with others becomes faster and slower by a tenth and more within hours. Each cell
measures it before it begins; the report shows it beside the cell's figures and does not correct them.
"""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dynamix_ps.run_record.manifest import machine

_SIDE = 64  # so small that the linear algebra library uses one thread for each product
_STACK = 128  # products per call, some milliseconds
_FLOP = 2.0 * _STACK * _SIDE**3  # per call


def machine_gflop_per_s(seconds: float = 1.0) -> float:
    """GFLOP/s of small single-precision matrix products for `seconds` on all cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    began_s = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        calls = sum(pool.map(_calls_until, [began_s + seconds] * cores))
    return calls * _FLOP / (time.perf_counter() - began_s) / 1e9


def _calls_until(end_s: float) -> int:
    left = np.linspace(0, 1, _STACK * _SIDE**2, dtype=np.float32).reshape(_STACK, _SIDE, _SIDE)
    product, calls = np.empty_like(left), 0
    while time.perf_counter() < end_s:
        np.matmul(left, left, out=product)
        calls += 1
    return calls


def machine_name() -> str:
    """The processor, and how many cores this process may use."""
    about = machine()
    return f"{about['cpu_model'] or platform.machine()}, {about['usable_cores']} cores"
