"""Random sizes: a control. A policy that is no faster than this one gains nothing from its measurements.

In every clean window every worker gets a new size between its bounds, drawn log-uniformly (chosen by us), because a
uniform draw hardly ever gives a small size.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.base import Decision, View


class RandomSizesPolicy:
    """Draws sizes from the given generator: the same seed and windows give the same sizes."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        low, high = np.array(view.bounds).T
        drawn = np.exp2(self._rng.uniform(np.log2(np.maximum(low, 1)), np.log2(np.maximum(high, 1))))
        return Decision(tuple(np.clip(np.rint(drawn).astype(int), low, high).tolist()))
