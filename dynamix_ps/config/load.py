"""A cluster's YAML file to `Config` and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import yaml

from dynamix_ps.config.rules import findings
from dynamix_ps.config.schema import Config
from dynamix_ps.config.validate import BrokenRule, dotted, load_model, no_rules
from dynamix_ps.config.yaml_lines import Dumper
from dynamix_ps.errors import ConfigError


def load_config(
    path: str | os.PathLike[str], more_findings: Callable[[Config], Iterable[BrokenRule]] = no_rules
) -> Config:
    """Read and check a cluster file.

    Args:
        more_findings: further rules, e.g. `policy.registry.findings`, for the policy.

    Raises:
        ConfigError: the file cannot be read, or one line per error in it.
    """

    def all_findings(config: Config) -> Iterator[BrokenRule]:
        yield from findings(config)
        yield from more_findings(config)

    return load_model(path, Config, all_findings, examples="examples are in configs/")


def load_recorded_config(path: str | os.PathLike[str]) -> Config:
    """Read what `dump_config` wrote into a run folder, also in an earlier version, which kept every policy's section.

    Raises:
        ConfigError: the file cannot be read, or a value in it is of another kind.
    """
    config = load_model(path, Config)
    return config.model_copy(update={"policy": config.policy.without_foreign_keys()})


def dump_config(config: Config) -> str:
    """YAML text from which `load_config` makes an equal Config. Keys that only other policies take are left out."""
    data = config.model_dump(mode="json")
    data["policy"] = {key: data["policy"][key] for key in ("name", *config.policy.own_keys)}
    if "ppo" in data["policy"]:  # where it is silent, the settings of the policy file count
        data["policy"]["ppo"] = config.policy.ppo.model_dump(mode="json", exclude_unset=True)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, width=120)


def check_rules(config: Config, origin: str) -> Config:
    """The same config, if no rule between its keys is broken.

    For configs that were changed after loading; `origin` says by what, e.g. "--policy ppo".

    Raises:
        ConfigError: one line per broken rule.
    """
    broken = [f"{origin}: {dotted(item.path)}: {item.message} (got {item.got})" for item in findings(config)]
    if broken:
        raise ConfigError("\n".join(broken))
    return config
