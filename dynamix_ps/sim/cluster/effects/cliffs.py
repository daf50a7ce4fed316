"""Cache and memory cliffs: beyond some batch each further sample takes `slope` times as long.

Activations grow with the batch. When they no longer fit into a cache, or into memory, what is beyond it is fetched from
farther away. Dynamic batching (arXiv 2305.12213) reports a sharp cliff at the memory of a GPU and a gradual decline on
CPUs; semi-dynamic load balancing (arXiv 1806.02508) models the time of a GPU as piecewise linear. In one report of
inference the slope beyond 80 sentences is 1.7 times that before (awslabs/sockeye, issue 940).
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.cluster.parameters import Reals


def extra(samples: Reals, above_samples: Reals, slope: Reals | np.float32) -> Reals:
    """Samples whose time is spent in addition, because those above `above_samples` take `slope` times as long."""
    return np.asarray((slope - 1) * np.maximum(samples - above_samples, 0))
