"""The lock files: what the requirements files ask for, each by its hashes, and nothing that names where to get it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("mxnet", "without-mxnet")


def pins(file: Path) -> dict[str, str]:
    """Versions by package name, in the one spelling that packages are compared by."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[\w+\])?==(\S+)", file.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_lock_file_fits_the_versions_it_was_made_from(variant: str) -> None:
    asked = pins(ROOT / "requirements.txt") | pins(ROOT / f"requirements-{variant}.txt")
    locked = pins(ROOT / f"requirements-{variant}.lock")
    del asked["torch"]
    assert asked.items() <= locked.items()  # otherwise: make lock
    assert ("mxnet" in locked) == (variant == "mxnet")


@pytest.mark.parametrize("name", [*VARIANTS, "torch", "torch-cpu"])
def test_every_package_has_hashes_and_no_line_says_anything_else(name: str) -> None:
    text = (ROOT / f"requirements-{name}.lock").read_text()
    for requirement in text.replace("\\\n", "").splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", requirement), requirement


def test_torch_is_locked_apart_in_its_cpu_build_and_in_that_of_a_plain_index() -> None:
    version = pins(ROOT / "requirements.txt")["torch"]
    assert pins(ROOT / "requirements-torch.lock") == {"torch": version}
    assert pins(ROOT / "requirements-torch-cpu.lock") == {"torch": f"{version}+cpu"}
    for variant in VARIANTS:
        locked = pins(ROOT / f"requirements-{variant}.lock")
        assert "torch" not in locked and not [name for name in locked if name.startswith(("nvidia", "triton"))]
