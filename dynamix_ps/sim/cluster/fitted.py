"""Workloads as the quadratic has them: numbers fitted to real trainings.

What they were fitted to, and how well they fit: benchmarks/results/rate-surrogate.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynamix_ps.sim.scenario.parts import WorkloadName


@dataclass(frozen=True, slots=True)
class Fitted:
    """One workload at its tuned rate and batch."""

    steepest: float  # the arguments of quadratic.power_law
    tail: float
    floor: float
    floor_tail: float
    rate_power: float  # the rate counts with this power: less than 1 where normalised layers and Adam adapt
    adaptive: bool  # Adam: the noise of the gradient lowers the rate
    iterations: int  # for which rate and batch are tuned


FITTED: dict[WorkloadName, Fitted] = {
    "cnn-sgd": Fitted(1.14, 0.366, 0.0125, 1.2, 0.618, adaptive=False, iterations=312),
    "cnn-adam": Fitted(0.676, 0.469, 0.0168, 1.47, 0.771, adaptive=True, iterations=390),
    "resnet-sgd": Fitted(0.485, 0.145, 0.111, -0.11, 0.258, adaptive=False, iterations=375),
    "resnet-adam": Fitted(0.555, 0.0, 0.0854, 0.135, 0.48, adaptive=True, iterations=375),
    "gpt-adamw": Fitted(1.21, 0.174, 0.0127, 0.711, 0.356, adaptive=True, iterations=400),
}
