"""A cluster's YAML file to `Config` and back."""

from __future__ import annotations

import os

import yaml

from dynamix_ps.config.rules import findings
from dynamix_ps.config.schema import Config
from dynamix_ps.config.validate import dotted, load_model
from dynamix_ps.config.yaml_lines import Dumper
from dynamix_ps.errors import ConfigError


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check a cluster file.

    Raises:
        ConfigError: the file cannot be read, or one line per error in it.
    """
    return load_model(path, Config, findings, examples="examples are in configs/")


def dump_config(config: Config) -> str:
    """YAML text from which `load_config` makes an equal Config."""
    data = config.model_dump(mode="json")
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
