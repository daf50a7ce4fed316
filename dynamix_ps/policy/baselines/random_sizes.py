"""Random sizes: a control. A policy that is no faster than this one has learned nothing from its measurements.

In every clean window every worker gets a new size between its bounds, drawn log-uniformly: a uniform draw would hardly
ever give a small size. Chosen by us.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.base import Decision, View


class RandomSizesPolicy:
    """Draws from the generator it was made with, so that the same seed and windows give the same sizes."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones where the window is not clean."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        low, high = np.array(view.bounds).T
        drawn = np.exp2(self._rng.uniform(np.log2(np.maximum(low, 1)), np.log2(high)))
        return Decision(tuple(np.clip(np.rint(drawn).astype(int), low, high).tolist()))
