"""Time over batch size as a staircase: hardware computes whole tiles of samples.

The part `part` of the time per sample counts samples rounded up to a multiple of the tile, the rest counts samples. In
a single matrix product all of it comes in tiles: 10 to 32 rows take the same time, row 33 takes 95 % more
(ml-explore/mlx, pull request 3863; NVIDIA, Matrix Multiplication Background User's Guide DU-09799, 3.1). A network has
layers with steps in different places, so part is less than 1.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.cluster.parameters import Reals


def padding(samples: Reals, tile_samples: Reals, part: Reals) -> Reals:
    """Samples whose time is spent in addition, because the last tile is not full."""
    return np.asarray(part * (np.ceil(samples / tile_samples) * tile_samples - samples))
