"""From the name in the cluster file to the policy: a row of `config/policies.py`, or `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from dynamix_ps.config import schema
from dynamix_ps.config.policies import SAFETY, entry_of, is_target
from dynamix_ps.config.schema import Config
from dynamix_ps.config.validate import BrokenRule
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.evidence.weighed import WeighedPolicy
from dynamix_ps.policy.model.cluster import HasClusterModel
from dynamix_ps.policy.safety_net import SafetyNet
from dynamix_ps.policy.third_party import class_of, constructor_of


def make_policy(config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None = None) -> Policy:
    """The policy that a configuration asks for, with its safety net where it has one that is not turned off.

    What a policy that ships proposes from measured speeds needs evidence, but not in the paper's space, as published.

    Args:
        rng: its only source of random numbers.
        resume: a file that an earlier process of this run saved; it wins over the configured one.

    Raises:
        PolicyError: there is no such policy, its file is unusable, or its parameters contradict each other.
    """
    name, options = config.policy.name, config.policy.options
    offered = {"config": config, "n_workers": n_workers, "rng": rng, "resume": resume}
    if is_target(name):
        return _made_elsewhere(name, offered, options)
    entry, ppo = entry_of(name), config.policy.ppo
    module, _, maker = entry.target.partition(":")
    target: Callable[..., Policy] = getattr(importlib.import_module(module), maker)
    policy = target(**_arguments(name, _signature(name, target), offered, options))
    if isinstance(policy, HasClusterModel) and SAFETY in entry.keys and config.policy.safety.enabled:
        policy = SafetyNet(policy, config.policy.safety)
    if not entry.measures or (name == "ppo" and ppo.space == "paper"):
        return policy
    return WeighedPolicy(policy, n_workers, explores=name == "ppo" and ppo.learn and config.mode == "adapt")


def _made_elsewhere(name: str, offered: Mapping[str, Any], options: Mapping[str, Any]) -> Policy:
    target = class_of(name)
    arguments = _arguments(name, _signature(name, target), offered, options)
    try:
        policy = target(**arguments)
    except PolicyError:
        raise
    except Exception as error:  # it is not our code
        raise PolicyError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(policy, "name", None), str):
        raise PolicyError(f"{name} made {policy!r:.100}, expected an attribute `name` of type str")
    return policy


def check_policy(config: Config) -> None:
    """Raises PolicyError for a policy that cannot be made; one from elsewhere is checked by its source alone."""
    name, n_workers = config.policy.name, len(config.cluster.workers)
    if not is_target(name):
        make_policy(config, n_workers, policy_rng(config))
    elif (signature := constructor_of(name)) is not None:
        offered = {"config": config, "n_workers": n_workers, "rng": None, "resume": None}
        _arguments(name, signature, offered, config.policy.options)


def findings(config: Config) -> Iterator[BrokenRule]:
    """What the source of a policy from elsewhere tells, and no more: it does not run. For `load_config`."""
    return _findings(config, check_policy)


def findings_at_start(config: Config) -> Iterator[BrokenRule]:
    """The same, and what only making the policy can tell. For `load_config`, when the job starts."""
    return _findings(config, check_policy, lambda it: make_policy(it, len(it.cluster.workers), policy_rng(it)))


def _findings(config: Config, *checks: Callable[[Config], object]) -> Iterator[BrokenRule]:
    if not is_target(config.policy.name) or config.mode == "off":
        return
    try:
        for check in checks:
            check(config)
    except PolicyError as error:
        shown = {"name": config.policy.name, "options": ", ".join(config.policy.options) or "none"}
        found = shown.pop(error.key)
        yield BrokenRule(("policy", error.key), str(error), found, tuple(("policy", other) for other in shown))


def policy_rng(config: Config, starts: int = 0) -> np.random.Generator:
    """What the policy of a run draws from, after so many earlier starts of its arbitrator."""
    return np.random.default_rng([config.seed, starts])


def policy_of(file: Path) -> schema.PolicySection:
    """A policy file as the cluster file would name it. Raises PolicyError."""
    from dynamix_ps.policy.ppo.policy_file import load_policy

    spec = load_policy(file, None).spec
    try:
        ppo = schema.Ppo.model_validate({"space": spec.space, "file": str(file), "hidden": spec.hidden})
    except ValidationError as error:
        raise PolicyError(f"{file}: no cluster file can name it: {error}; use another policy") from error
    return schema.PolicySection(name="ppo", ppo=ppo)


def _signature(name: str, target: Callable[..., Policy]) -> inspect.Signature:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{name} does not tell its arguments: {error}; write its __init__ in Python") from error


def _arguments(
    name: str, signature: inspect.Signature, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the offered arguments that the policy names, and all options. Raises PolicyError if they do not fit."""
    if reserved := sorted(options.keys() & offered.keys()):
        raise PolicyError(f"must not set {', '.join(reserved)}, which the arbitrator passes itself", "options")
    arguments: dict[str, Any] = {key: value for key, value in offered.items() if key in signature.parameters}
    arguments |= options
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise PolicyError(f"do not fit {name}{signature}: {error}", "options") from error
    return arguments
