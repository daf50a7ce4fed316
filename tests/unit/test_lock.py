"""The lock files: what the requirements files ask for, each by its hashes, and nothing that names where to get it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "requirements"
VARIANTS = ("mxnet", "without-mxnet")


def pins(file: Path) -> dict[str, str]:
    """Versions by package name, in the one spelling that packages are compared by."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[\w+\])?==(\S+)", file.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_lock_file_fits_the_versions_it_was_made_from(variant: str) -> None:
    asked, of_variant = pins(FOLDER / "main.txt"), pins(FOLDER / f"{variant}.txt")
    locked = pins(FOLDER / "main.lock")
    del asked["torch"]
    assert asked.items() <= locked.items()  # otherwise: make lock
    assert pins(FOLDER / f"{variant}.lock") == of_variant
    assert not of_variant.keys() & locked.keys()
    assert ("mxnet" in of_variant) == (variant == "mxnet")


def test_the_demo_has_a_part_of_all_packages() -> None:
    assert pins(FOLDER / "demo.lock").items() < pins(FOLDER / "main.lock").items()


@pytest.mark.parametrize("name", ["main", *VARIANTS, "torch", "torch-cpu", "image", "demo"])
def test_every_package_has_hashes_and_no_line_says_anything_else(name: str) -> None:
    text = (FOLDER / f"{name}.lock").read_text()
    for requirement in text.replace("\\\n", "").splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", requirement), requirement


def test_torch_is_locked_apart_in_its_cpu_build_and_in_that_of_a_plain_index() -> None:
    version = pins(FOLDER / "main.txt")["torch"]
    assert pins(FOLDER / "torch.lock")["torch"] == version
    assert pins(FOLDER / "torch-cpu.lock") == {"torch": f"{version}+cpu"}
    for name in ("main", *VARIANTS):
        locked = pins(FOLDER / f"{name}.lock")
        assert "torch" not in locked and not [name for name in locked if name.startswith(("nvidia", "triton"))]
