"""Every break of tests/breaks is still one plausible mistake in one line, and is tried in a copy that is mended."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.breaks.catalogue import Break, BreakError, find_place, read_breaks, read_product
from tests.breaks.work_copy import WorkCopy

ROOT = Path(__file__).resolve().parents[2]
BREAKS = read_breaks()
SMALLER = Break("sizes", "the smaller one is taken", "max(", "min(", ("tests/test_sizes.py",))


@pytest.fixture(scope="module")
def product() -> dict[str, str]:
    return read_product(ROOT)


def test_there_are_sixty_breaks_or_more_and_make_check_catches_nine_of_ten() -> None:
    assert len(BREAKS) >= 60
    assert Counter(one.command for one in BREAKS)["make check"] >= 0.9 * len(BREAKS)
    assert [name for name, count in Counter(one.name for one in BREAKS).items() if count > 1] == []


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_the_text_of_a_break_stands_at_one_place_and_its_tests_exist(one: Break, product: dict[str, str]) -> None:
    place = find_place(one, product)
    ast.parse(product[place.file].replace(one.find, one.put), place.file)
    assert one.put != one.find
    for test in one.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text() if name else (ROOT / file).exists(), test


def test_a_text_that_is_nowhere_or_at_two_places_is_told_with_its_places() -> None:
    with pytest.raises(BreakError, match=r"'the smaller one is taken': its text stands nowhere"):
        find_place(SMALLER, {"a.py": "x = 1\n"})
    with pytest.raises(BreakError, match=r"at 2 places \(a\.py:2, b\.py:1\)"):
        find_place(SMALLER, {"a.py": "\nmax(1, 2)\n", "b.py": "max(3, 4)\n"})


def test_a_break_is_made_in_the_copy_and_mended_there(tmp_path: Path) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    for name, text in {
        "dynamix_ps/__init__.py": "",
        "dynamix_ps/sizes.py": "def largest(one, other):\n    return max(one, other)\n",
        "tests/test_sizes.py": "from dynamix_ps import sizes\n\ndef test_it():\n    assert sizes.largest(1, 2) == 2\n",
        "tests/conftest.py": "from hypothesis import settings\n\nsettings.register_profile('unshrunk')\n",
        "left_out": "",
        ".gitignore": "left_out\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "-q", tree], check=True)
    work = WorkCopy(tree, copy)
    assert not (copy / "left_out").exists()
    assert work.run(SMALLER.tests, keep_compiled=True).passed
    with work.broken(SMALLER):
        outcome = work.run(SMALLER.tests)
    assert (outcome.passed, outcome.failed, outcome.trouble) == (False, "tests/test_sizes.py::test_it", "")
    mended, whole = (folder / "dynamix_ps/sizes.py" for folder in (copy, tree))
    assert mended.read_text() == whole.read_text()
    assert mended.stat().st_mtime_ns == whole.stat().st_mtime_ns, "what is compiled already is of this text"
    assert work.run(["tests/test_none.py"]).trouble == "pytest ended with code 4"
