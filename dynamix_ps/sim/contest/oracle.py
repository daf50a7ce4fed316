"""The oracle: sizes from perfect knowledge of the simulated cluster. No policy can be it; it says what can be won.

It knows the cost model with all its effects, the conditions of the coming window and the true noise scale. In every
window it takes the sizes with the largest progress per second. For a time t within which all workers must have
computed, the largest sizes take the most samples; so it tries many t and takes the best. A worker with more exposed
network time than most gets less time, as network_times.py says (policy/model). That ignores three things that
lie beyond the window: what a large batch costs in test accuracy (learning.py), what heat today costs tomorrow, and
changes within a window, which the simulator does not have. A policy may therefore be a little faster.
"""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.model.network_times import typical
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.cost import compute_s, exposed, iteration_times, transfers
from dynamix_ps.sim.cluster.parameters import Reals
from dynamix_ps.sim.cluster.simulator import Simulator

TIMES = 32  # tried at first, between the shortest and the longest iteration
FINER = 9  # tried around the best, in each of ROUNDS rounds
ROUNDS = 3


def oracle_sizes(simulator: Simulator) -> Whole:
    """Sizes of all environments for the coming window, (E, W)."""
    parameters, conditions = simulator.parameters, simulator.conditions
    noise_scale = simulator.noise_scale
    _, transfer_s, _ = transfers(parameters, conditions)
    calm = np.zeros(parameters.initial.shape, dtype=np.float32)
    speed = 1 / (parameters.per_sample_s * conditions.slow * conditions.heat)

    def own_s(sizes: Whole) -> Reals:
        """How long every worker computes, (..., E, W)."""
        return compute_s(parameters, conditions, sizes.astype(np.float32))

    def largest(limit_s: Reals) -> Whole:
        """The largest sizes that go with computing of at most `limit_s`, (K, E); (K, E, W)."""
        longest_s = limit_s[..., None]
        allowed_s = longest_s + 2 * typical(exposed(parameters, longest_s, longest_s, transfer_s), speed)[..., None]
        shape = (*limit_s.shape, parameters.n_workers)
        fits, beyond = np.broadcast_to(parameters.low, shape), np.broadcast_to(parameters.high + 1, shape)
        for _ in range(math.ceil(math.log2((beyond - fits).max()))):
            middle = (fits + beyond) // 2
            computing_s = own_s(middle)
            needs_s = computing_s + 2 * exposed(parameters, computing_s, longest_s, transfer_s)
            done = (computing_s <= longest_s) & (needs_s <= allowed_s)
            fits, beyond = np.where(done, middle, fits), np.where(done, beyond, middle)
        return fits

    def per_s(sizes: Whole) -> Reals:
        """Progress per second, (K, E)."""
        real = sizes.astype(np.float32)
        duration_s = iteration_times(parameters, conditions, real, calm).iteration_s
        return learning.step_progress(parameters, noise_scale, np.maximum(real.sum(axis=-1), 1)) / duration_s

    shortest_s, longest_s = (own_s(sizes).max(axis=-1) for sizes in (parameters.low, parameters.high))
    limits_s = np.geomspace(shortest_s, np.maximum(longest_s, shortest_s * 1.001), TIMES)
    step = limits_s[1] / limits_s[0]
    sizes: Whole = parameters.low
    for _ in range(1 + ROUNDS):
        tried = largest(limits_s)
        best = per_s(tried).argmax(axis=0)[None]
        middle_s = np.take_along_axis(limits_s, best, axis=0)[0]
        sizes = np.take_along_axis(tried, best[..., None], axis=0)[0]
        limits_s, step = np.geomspace(middle_s / step, middle_s * step, FINER), step ** (2 / (FINER - 1))
    return sizes
