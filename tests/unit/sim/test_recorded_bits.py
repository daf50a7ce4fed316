"""Scenarios without effects of real machines give the same bits as before there were such effects.

recorded_bits.json holds what the simulator gave, by scenario: a digest of all that it reported, the time and the
progress at the end. It is recorded anew where formulas of the cost model change. Bits depend on the vector instructions
that numpy finds. So the digests count on machines with those of the recording; on others, time and progress count, to a
ten-thousandth.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.randomise import draw
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import load_scenario

FILE = Path(__file__).with_name("recorded_bits.json")
RANDOM = "clusters at random"
SCENARIOS = (
    "bandwidth-drop", "h-level-10", "h-level-2", "h-level-4", "h-level-8", "hl-schedule", "homogeneous", "loss-bursts",
    "noisy-neighbour", "server-ingress", "slow-link", "spot-slowdown",
)  # fmt: skip
LATER = {"first_iteration"}  # reported since the recording
WINDOWS, RUNS, SEED = 120, 3, 7


def clusters(name: str) -> Parameters:
    if name == RANDOM:
        return draw(np.random.default_rng(SEED), 8, 5)
    return parameters_of([load_scenario(name)] * RUNS)


def run(name: str) -> dict[str, Any]:
    """A run with changing sizes: digest of everything reported, seconds and progress at the end."""
    parameters = clusters(name)
    simulator = Simulator(parameters, np.random.default_rng(SEED))
    sizes, bits = np.random.default_rng(SEED), hashlib.sha256()
    for _ in range(WINDOWS):
        window = simulator.step(sizes.integers(parameters.low, 1024))
        for field in dataclasses.fields(window):
            if field.name in LATER:
                continue
            bits.update(np.ascontiguousarray(getattr(window, field.name)).tobytes())
        bits.update(simulator.time_s.tobytes() + simulator.progress.tobytes())
    return {
        "digest": bits.hexdigest(),
        "time_s": simulator.time_s.tolist(),
        "progress": simulator.progress.tolist(),
    }


def instructions() -> str:
    """Version of numpy, and the vector instructions for which it has code and which this machine has."""
    from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return f"{np.__version__}: {' '.join(one for one in __cpu_dispatch__ if __cpu_features__[one])}"


@pytest.mark.parametrize("name", [*SCENARIOS, RANDOM])
def test_without_effects_bits_are_as_recorded(name: str):
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    found, before = run(name), recorded["runs"][name]
    if instructions() == recorded["instructions"]:
        assert found["digest"] == before["digest"]
    assert found["time_s"] == pytest.approx(before["time_s"], rel=1e-4)
    assert found["progress"] == pytest.approx(before["progress"], rel=1e-4)


if __name__ == "__main__":
    runs = {name: run(name) for name in (*SCENARIOS, RANDOM)}
    FILE.write_text(json.dumps({"instructions": instructions(), "runs": runs}, indent=1) + "\n", encoding="utf-8")
