"""The action space of DYNAMIX (arXiv 2510.08522, IV-C): every worker adds one of five steps to its own size.

One action thus changes both the global batch and its split.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.agent import Act, LearnedAgent
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.window_arrays import Array

PAPER_STEPS = (-100, -25, 0, 25, 100)  # samples
PAPER_BOUNDS = (32, 1024)


class PaperAgent(LearnedAgent):
    """One network, `worker`."""

    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        return {"worker": self._reward.of_worker(state, before).reshape(-1)}

    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        return {"worker": state.window.present.reshape(-1)}

    def sizes(self, state: State, act: Mapping[str, Act]) -> Whole:
        window = state.window
        chosen = act["worker"](state.rows.reshape(-1, state.rows.shape[-1])).reshape(window.planned.shape)
        wanted = paper_sizes(window.planned, chosen, window.low, window.high)
        return np.where(window.present, wanted, window.planned)


def paper_sizes(planned: Whole, actions: NDArray[np.int64], low: Whole, high: Whole) -> Whole:
    """Sizes plus steps, within the worker's bounds, and within the paper's bounds too if the two overlap."""
    wanted = np.clip(planned + np.array(PAPER_STEPS)[actions], *PAPER_BOUNDS)
    return np.asarray(np.clip(wanted, low, high))
