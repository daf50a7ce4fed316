"""From the name in the cluster file to the policy: a row of `config/policies.py`, or `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from dynamix_ps.config import schema
from dynamix_ps.config.policies import entry_of, is_target
from dynamix_ps.config.schema import Config
from dynamix_ps.config.validate import Finding
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.evidence.weighed import WeighedPolicy


class _OptionsError(PolicyError):
    """`policy.options` does not fit the policy's constructor."""


def make_policy(config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None = None) -> Policy:
    """The policy that a configuration asks for; a learned one comes with its safety net, unless that is turned off.

    What a policy that ships proposes from measured speeds needs evidence, but not in the paper's space, as published.

    Args:
        rng: its only source of random numbers.
        resume: a file that an earlier process of this run saved; it wins over the configured one.

    Raises:
        PolicyError: there is no such policy, its file is unusable, or its parameters contradict each other.
    """
    name, options = config.policy.name, config.policy.options
    target = _target(entry_of(name).target)
    offered = {"config": config, "n_workers": n_workers, "rng": rng, "resume": resume}
    arguments = _arguments(name, target, offered, options)
    if not is_target(name):
        policy, ppo = target(**arguments), config.policy.ppo
        if not entry_of(name).measures or (name == "ppo" and ppo.space == "paper"):
            return policy
        return WeighedPolicy(policy, n_workers, explores=name == "ppo" and ppo.learn and config.mode == "adapt")
    try:
        policy = target(**arguments)
    except PolicyError:
        raise
    except Exception as error:  # it is not our code
        raise PolicyError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(policy, "name", None), str) or not callable(getattr(policy, "decide", None)):
        raise PolicyError(
            f"{name} made {policy!r}, expected a policy: an attribute `name` of type str and a method `decide(view)`"
        )
    return policy


def findings(config: Config) -> Iterator[Finding]:
    """What is wrong with a policy from elsewhere, which only making it can tell; for `load_config`."""
    if not is_target(config.policy.name) or config.mode == "off":
        return
    try:
        make_policy(config, len(config.cluster.workers), policy_rng(config))
    except _OptionsError as error:
        yield Finding(("policy", "options"), str(error), _shown(config.policy.options), (("policy", "name"),))
    except PolicyError as error:
        yield Finding(("policy", "name"), str(error), config.policy.name, (("policy", "options"),))


def policy_rng(config: Config, starts: int = 0) -> np.random.Generator:
    """What the policy of a run draws from, after so many earlier starts of its arbitrator."""
    return np.random.default_rng([config.seed, starts])


def policy_of(file: Path) -> schema.Policy:
    """A policy file as the cluster file would name it. Raises PolicyError."""
    from dynamix_ps.policy.ppo.policy_file import load_policy

    spec = load_policy(file, None).spec
    try:
        ppo = schema.Ppo.model_validate({"space": spec.space, "file": str(file), "hidden": spec.hidden})
    except ValidationError as error:
        raise PolicyError(f"{file}: no cluster file can name it: {error}; use another policy") from error
    return schema.Policy(name="ppo", ppo=ppo)


def _target(name: str) -> Callable[..., Policy]:
    """What `package.module:callable` names; modules of the current folder are found too. Raises PolicyError."""
    module_name, _, attribute = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as in the roles of a run, whose PYTHONPATH begins with it
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise PolicyError(f"module {module_name} cannot be imported: {error}; install what it needs") from error
        raise PolicyError(
            f"there is no module {error.name}; install it, or launch from the folder that it lies in (now {folder})"
        ) from error
    except Exception as error:  # it is not our code
        raise PolicyError(f"module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        what = "no such name" if found is None else f"{type(found).__name__}, which cannot be called,"
        raise PolicyError(f"{module.__file__} has {what} as {attribute}; name a class of a policy that is there")
    return found  # type: ignore[no-any-return]


def _arguments(
    name: str, target: Callable[..., Policy], offered: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the offered arguments that the policy names, and all options. Raises PolicyError if they do not fit."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{name} does not tell its arguments: {error}; write its __init__ in Python") from error
    if reserved := sorted(options.keys() & offered.keys()):
        raise _OptionsError(f"must not set {', '.join(reserved)}, which the arbitrator passes itself")
    arguments: dict[str, Any] = {key: value for key, value in offered.items() if key in signature.parameters}
    arguments |= options
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise _OptionsError(f"do not fit {name}{signature}: {error}") from error
    return arguments


def _shown(options: Mapping[str, Any]) -> str:
    return ", ".join(options) or "none"
