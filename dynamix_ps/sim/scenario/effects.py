"""Which effects of real machines a scenario has, and the same cluster as a straight line has it."""

from __future__ import annotations

from dynamix_ps.sim.scenario.load import Scenario

_OF_WORKERS = ("tiles", "cliff", "heat")


def effects_of(scenario: Scenario) -> tuple[str, ...]:
    """Their names; those of sim/cluster/effects/."""
    found = [name for name in _OF_WORKERS if any(getattr(worker, name) is not None for worker in scenario.workers)]
    if scenario.contention:
        found.append("contention")
    if any(event.every_s is not None for event in scenario.trace):
        found.append("recurrence")
    return tuple(found)


def without_effects(scenario: Scenario) -> Scenario:
    """The scenario with all of them left out; bursts, drift and events that happen once stay."""
    nothing = dict.fromkeys((*_OF_WORKERS, "host"))
    return scenario.model_copy(
        update={
            "workers": tuple(worker.model_copy(update=nothing) for worker in scenario.workers),
            "contention": 0.0,
            "trace": tuple(event for event in scenario.trace if event.every_s is None),
        }
    )
