"""The clusters and trainings of the simulated study of language models, and who takes part.

A world is one of the two clusters of gpt_cells.py with the training that was fitted to it (gpt_simulated_fit.py). Its
noise scale may be several times as large, as that of larger models is. Then all that counts in tokens grows with it:
a token takes so much less time, as if every worker had so many times the machines (agent_clusters.py), and the targets
take so many times the tokens. So an iteration with the same batch, relative to the noise scale, lasts as long as before
and brings the model as far. A size may also count sequences of several tokens.

The gradient leaves as a whole when backward ends, as in the rehearsals, where it is small. No worker runs out of
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.studies.agent_clusters import cluster_for
from benchmarks.studies.gpt_cells import (
    FIRST_SIZE,
    NOISE_SCALE,
    TARGETS,
    TOKENS,
    WORKERS,
)
from benchmarks.studies.gpt_simulated_fit import RULE, accuracy_at
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Bounds, Training

TIMES = (1, 8, 64, 512)  # the noise scale, over that of the rehearsed model
UNITS = (1, CONTEXT, 1024, 2048)  # tokens that a size of the paper's space counts
FIXED = tuple(1 << power for power in range(10, 23))  # tokens of an iteration
BEYOND = 0.1  # nats per byte after the last target, at which a run ends
NO_LIMIT = 1e12  # samples

PAPER, IN_BOUNDS = "paper", "ppo in its bounds"


@dataclass(frozen=True, slots=True)
class World:
    """A training on a cluster.

    Attributes:
        times: the noise scale, over that of the rehearsed model.
        unit: tokens that a size counts; 1 where the paper's space is not concerned.
        first: tokens that a worker begins with, if its bounds allow them.
    """

    cluster: str
    training: Training
    times: int = 1
    unit: int = 1
    first: int = FIRST_SIZE

    def scenario(self, bounds: Bounds) -> Scenario:
        """With these bounds of a worker's size."""
        grown = self.times / self.unit
        cluster = cluster_for(load_scenario(self.cluster), NOISE_SCALE * grown, TOKENS.window)
        training = self.training.model_copy(
            update={
                "noise_scale": self.training.noise_scale * grown,
                "data_samples": self.training.data_samples * grown,
            }
        )
        return cluster.model_copy(
            update={
                "name": f"gpt-{self.cluster}-x{self.times}-{self.unit}",
                "workers": tuple(one.model_copy(update={"memory_limit": NO_LIMIT}) for one in cluster.workers),
                "overlap": 0.0,
                "lr_rule": RULE,
                "batch": bounds,
                "initial_batch": min(max(self.first // self.unit, bounds.min), bounds.max),
                "training": training,
                "target_accuracy": accuracy_at(training, TARGETS[-1].value - BEYOND),
            }
        )


FREE = Bounds(min=CONTEXT, max=FIXED[-1] // WORKERS)  # of a size in tokens


def paper_bounds(unit: int) -> Bounds:
    """Of a size that counts so many tokens. Fewer tokens than CONTEXT hold no sequence."""
    low, high = PAPER_BOUNDS
    return Bounds(min=max(low, CONTEXT) if unit == 1 else low, max=high)
