"""Families of simulated clusters, the same ones with other trainings: policies learn on one and are used on another.

- `sgd`: a small CNN with SGD, as in the scenario files; the learning rate follows AdaScale.
- `adam`: the same model with Adam; the learning rate follows sqrt(B/B0), and the noise scale begins higher and grows
  less (chosen by us; Adam's preconditioning evens out the gradient's noise).
- `large`: a model ten times as large, with ten times the computing and bytes and three times the noise scale.
- `transformer`: the profile of that name (sim/scenario/parts.py), with a higher noise scale, slower decay, twice the
  computing and four times the bytes.

The events of a scenario stretch with its computing time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import PROFILES

SCENARIOS = ("homogeneous", "h-level-8", "bandwidth-drop", "spot-slowdown")
WINDOWS = 200_000  # of the training of one policy
TRANSFORMER_TARGET = 0.46


def families(names: Sequence[str]) -> dict[str, tuple[Scenario, ...]]:
    """Scenarios by family."""
    plain = [load_scenario(name) for name in names]
    return {
        "sgd": tuple(plain),
        "adam": tuple(trained(one, lr_rule="sqrt", noise_scale=3.0, noise_growth=0.6) for one in plain),
        "large": tuple(trained(heavier(one, 10, 10), noise_scale=3.0) for one in plain),
        "transformer": tuple(as_transformer(heavier(one, 2, 4)) for one in plain),
    }


def trained(
    scenario: Scenario, lr_rule: str = "adascale", noise_scale: float = 1.0, noise_growth: float = 1.0
) -> Scenario:
    """The scenario with another learning-rate rule, and with factors on the noise scale and its growth."""
    training = scenario.training
    changed = {"noise_scale": training.noise_scale * noise_scale, "noise_growth": training.noise_growth * noise_growth}
    return scenario.model_copy(update={"training": training.model_copy(update=changed), "lr_rule": lr_rule})


def as_transformer(scenario: Scenario) -> Scenario:
    """The scenario with the transformer's profile; its new target takes a similar number of windows."""
    training = scenario.training.model_copy(update=PROFILES["transformer"])
    return scenario.model_copy(update={"training": training, "target_accuracy": TRANSFORMER_TARGET})


def heavier(scenario: Scenario, computing: float, model: float) -> Scenario:
    """The scenario with factors on computing and bytes; its events take `computing` times as long."""

    def later(change: Any) -> Any:
        names = [name for name in ("at_s", "until_s", "every_s", "for_s") if getattr(change, name, None) is not None]
        return change.model_copy(update={name: getattr(change, name) * computing for name in names})

    workers = tuple(
        worker.model_copy(
            update={"fixed_s": worker.fixed_s * computing, "per_sample_s": worker.per_sample_s * computing}
        )
        for worker in scenario.workers
    )
    return scenario.model_copy(
        update={
            "workers": workers,
            "model_bytes": scenario.model_bytes * model,
            "drift_s": scenario.drift_s * computing,
            "trace": tuple(later(event) for event in scenario.trace),
            "bursts": tuple(later(burst) for burst in scenario.bursts),
        }
    )
