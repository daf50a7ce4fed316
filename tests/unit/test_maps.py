"""Large flat packages have a map at their door: the docstring of the package names every module in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dynamix_ps

ROOT = Path(dynamix_ps.__file__).parents[1]
LARGEST_WITHOUT_MAP = 12  # modules
ALWAYS = (
    "worker_hooks",
    "server_hooks",
    "dynamix_ps/comm",
    "worker_hooks/observe",
    "dynamix_ps/arbitrator",
    "dynamix_ps/sim",
    *(f"dynamix_ps/sim/{wing}" for wing in ("calibration", "cluster", "contest", "scenario", "training")),
)


def modules_of(package: Path) -> set[str]:
    """Modules and packages directly inside, without generated ones."""
    files = {file.stem for file in package.glob("*.py") if "_pb2" not in file.stem}
    return (files | {door.parent.name for door in package.glob("*/__init__.py")}) - {"__init__"}


def with_maps() -> list[str]:
    doors = [
        door
        for top in ("dynamix_ps", "server_hooks", "worker_hooks", "benchmarks")
        for door in (ROOT / top).rglob("__init__.py")
    ]
    large = {str(d.parent.relative_to(ROOT)) for d in doors if len(modules_of(d.parent)) > LARGEST_WITHOUT_MAP}
    return sorted(large | set(ALWAYS))


@pytest.mark.parametrize("package", with_maps())
def test_the_map_names_every_module_and_no_other(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    entries = re.findall(r"^ *([a-z0-9_, ]+?)(?:  +\S.*)$", docstring, re.MULTILINE)
    named = {name for entry in entries for name in entry.split(", ")}
    assert modules_of(ROOT / package) - named - {"__main__"} == set(), "modules that the map does not name"
    assert named - modules_of(ROOT / package) == set(), "names in the map that are no modules"
