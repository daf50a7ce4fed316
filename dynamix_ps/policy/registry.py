"""From the name in the cluster file to the policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynamix_ps.config import schema
from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.baselines.lbb import LbbPolicy
from dynamix_ps.policy.baselines.lbbsp import LbBspCpuPolicy, LbBspGpuPolicy
from dynamix_ps.policy.baselines.pid import PidPolicy
from dynamix_ps.policy.baselines.proportional import ProportionalPolicy
from dynamix_ps.policy.baselines.random_sizes import RandomSizesPolicy
from dynamix_ps.policy.baselines.static import StaticPolicy
from dynamix_ps.policy.learned.policy import make_ppo
from dynamix_ps.policy.learned.safety_net import SafetyNet
from dynamix_ps.policy.ppo.policy_file import load_policy


def make_policy(config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None = None) -> Policy:
    """The policy that a configuration asks for; a learned one comes with its safety net, unless that is turned off.

    Args:
        rng: its only source of random numbers.
        resume: a file that an earlier process of this run saved; it wins over the configured one.

    Raises:
        PolicyError: the policy file is unusable, or the parameters contradict each other.
    """
    chosen = config.policy
    policy: Policy
    match chosen.name:
        case "static":
            policy = StaticPolicy(chosen.sizes or config.initial_sizes())
        case "proportional":
            policy = ProportionalPolicy(n_workers)
        case "pid":
            policy = PidPolicy(n_workers, chosen.pid.keep_global)
        case "lbbsp":
            policy = LbBspCpuPolicy(n_workers) if chosen.lbbsp.rule == "cpu" else LbBspGpuPolicy(n_workers)
        case "lbb":
            policy = LbbPolicy(n_workers)
        case "goodput":
            policy = GoodputPolicy(n_workers)
        case "random":
            policy = RandomSizesPolicy(rng)
        case "ppo":
            learned = make_ppo(chosen.ppo, n_workers, rng, learn=config.mode == "adapt", resume=resume)
            policy = SafetyNet(learned, chosen.safety) if chosen.safety.enabled else learned
    return policy


def policy_rng(config: Config, starts: int = 0) -> np.random.Generator:
    """What the policy of a run draws from, after so many earlier starts of its arbitrator."""
    return np.random.default_rng([config.seed, starts])


def policy_of(file: Path) -> schema.Policy:
    """A policy file as the cluster file would name it. Raises PolicyError."""
    spec = load_policy(file, None).spec
    ppo = schema.Ppo.model_validate({"space": spec.space, "file": str(file), "hidden": spec.hidden})
    return schema.Policy(name="ppo", ppo=ppo)
