"""Heat: sustained load slows a machine down, waiting cools it.

The heat of a worker is the exponential mean of its load, the part of the time in which it computes. Intel's processors
limit power in this way: the average that PL1 limits is exponential, with a time constant of 28 s on most mobile
machines (data sheets, Turbo Time Parameter). Heat up to `sustained_load` changes nothing; heat above it slows the
machine down, linearly to `slow_down` under full load (linear: chosen by us). GPUs of one model differ by 8 % on average
through their power and heat, and some are 1.5 times slower than the median (arXiv 2208.11035). A Titan X throttles
after tens of seconds (soumith/convnet-benchmarks, issue 71).
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.cluster.parameters import Reals


def warmed(heat: Reals, load: Reals, elapsed_s: Reals, time_constant_s: Reals) -> Reals:
    """The heat after `elapsed_s`, (E,), under a constant load of 0 to 1; the others are (E, W)."""
    return np.asarray(load + (heat - load) * np.exp(-elapsed_s[:, None] / time_constant_s))


def slow_down(heat: Reals, sustained_load: Reals, largest: Reals) -> Reals:
    """Factor on the compute time: 1 up to `sustained_load`, `largest` at heat 1."""
    above = np.clip((heat - sustained_load) / (1 - sustained_load), 0, 1)
    return np.asarray(1 + (largest - 1) * above)
