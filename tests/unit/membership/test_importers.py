"""What the model checks is what runs: no module of membership is there for the model alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("dynamix_ps/membership", "worker_hooks/membership")
PRODUCT = ("dynamix_ps", "server_hooks", "worker_hooks")


def modules_of(text: str) -> set[str]:
    return set(re.findall(r"^\s*from ((?:dynamix_ps|worker_hooks)\.membership\.\w+) import", text, re.MULTILINE))


def used() -> set[str]:
    """Modules of membership that other rooms of the product import, and those that these import."""
    files = {file: str(file.relative_to(ROOT)) for room in PRODUCT for file in (ROOT / room).rglob("*.py")}
    found = [
        modules_of(file.read_text())
        for file, name in files.items()
        if not name.startswith(tuple(f"{room}/" for room in ROOMS))
    ]
    new = reached = set[str]().union(*found)
    while new:
        texts = [(ROOT / f"{name.replace('.', '/')}.py").read_text() for name in new]
        new = set[str]().union(*map(modules_of, texts)) - reached
        reached = reached | new
    return reached


@pytest.mark.parametrize("room", ROOMS)
def test_the_product_imports_every_module_of_membership(room: str) -> None:
    names = {f"{room.replace('/', '.')}.{file.stem}" for file in (ROOT / room).glob("*.py")}
    assert names - used() == {f"{room.replace('/', '.')}.__init__"}
