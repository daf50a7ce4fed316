"""Parts of the product that may be taken away: nothing imports one of them, it is loaded by name.

pyproject.toml lists these parts, as contracts of import-linter whose names begin with "removable: ".
"""

from __future__ import annotations

import importlib
from typing import Any

from dynamix_ps.errors import EnvironmentNotReady

_OURS = ("dynamix_ps", "server_hooks", "worker_hooks")


def load(target: str) -> Any:
    """What `package.module:name` names, or a module. Raises EnvironmentNotReady if its part is not installed."""
    module, _, name = target.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OURS:
            raise
        raise EnvironmentNotReady(
            f"this part is not installed: {error.name}; install the whole package: pip install dynamix-ps"
        ) from error
    return getattr(found, name) if name else found
