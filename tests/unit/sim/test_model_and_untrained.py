"""The policy `ppo` without anything learned is the policy `model`, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.policy.learned.spaces import fresh_networks, policy_spec
from dynamix_ps.policy.ppo.policy_file import StoredPolicy, save_policy
from dynamix_ps.policy.ppo.settings import settings_of
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import load_scenario, shipped


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> PolicySection:
    ppo = Ppo()
    spec = policy_spec(ppo.space, ppo.hidden)
    networks = fresh_networks(spec, settings_of(ppo), np.random.default_rng(0))
    file = tmp_path_factory.mktemp("policies") / "untrained.npz"
    save_policy(file, StoredPolicy({name: one.weights for name, one in networks.items()}, spec, {}))
    return PolicySection(name="ppo", ppo=Ppo(file=str(file)))


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_on_every_scenario_that_ships(name: str, untrained: PolicySection) -> None:
    scenario = load_scenario(name)
    model, learned = (evaluate(Cell(scenario, policy, seeds=1)) for policy in (PolicySection(name="model"), untrained))
    for field in dataclasses.fields(model):
        np.testing.assert_array_equal(getattr(model, field.name), getattr(learned, field.name))
