"""All actors of a cluster in one process, for the simulator: what the sums of the trailer would carry goes by itself.

`Actor` keeps its workers apart, so one actor for all workers lays the same traces, and chooses the same sizes, as one
actor per worker whose traces are summed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.stigmergy.actor import Actor
from dynamix_ps.policy.stigmergy.settings import StigmergySettings
from dynamix_ps.policy.window_arrays import arrays_of


class StigmergyPolicy(Policy):
    """Every worker chooses its own size. The keyword arguments are those of StigmergySettings."""

    name = "stigmergy"

    def __init__(self, n_workers: int, rng: np.random.Generator, **settings: float) -> None:
        """Raises ValueError for settings out of range, TypeError for unknown ones."""
        seed = int(rng.integers(2**31))
        self._actor = Actor(n_workers, settings=StigmergySettings(**settings), seed=seed)

    def decide(self, view: View) -> Decision:
        """The sizes that the workers choose; the present ones if the window is not clean."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        actor = self._actor
        actor.observe(arrays_of(view))
        actor.read(actor.traces)
        return Decision(tuple(actor.propose(actor.traces, view.window).tolist()))


def stigmergy_policy(config: Config, n_workers: int, rng: np.random.Generator) -> StigmergyPolicy:
    """The policy with the numbers of a cluster file."""
    return StigmergyPolicy(n_workers, rng, **dataclasses.asdict(StigmergySettings.of(config.policy.stigmergy)))
