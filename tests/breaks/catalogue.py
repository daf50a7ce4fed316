"""The breaks of breaks.yaml. A break is found by its text, so it stays valid where the text moves to another file.

area: [
  {name: what goes wrong, find: text in the product, put: text in its place, tests: tests that catch it}, ...
]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

_PRODUCT = ("dynamix_ps", "server_hooks", "worker_hooks")
_FAST = ("tests/unit/", "tests/models/", "tests/property/")  # what `make check` runs


class BreakError(Exception):
    """A break that cannot be tried: its text does not stand at exactly one place."""


@dataclass(frozen=True, slots=True)
class Break:
    """One plausible mistake. `find` is a text in the product, and `put` stands there in the broken copy."""

    area: str
    name: str
    find: str
    put: str
    tests: tuple[str, ...]

    @property
    def command(self) -> str:
        """The fastest command that runs the tests which catch the break."""
        return "make check" if all(test.startswith(_FAST) for test in self.tests) else "make test"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the text of a break begins. `file` is relative to the root of the tree."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def read_breaks(file: Path = Path(__file__).with_name("breaks.yaml")) -> list[Break]:
    """All breaks, in the order of the file."""
    return [
        Break(area, one["name"], one["find"], one["put"], tuple(one["tests"].split()))
        for area, breaks in yaml.safe_load(file.read_text()).items()
        for one in breaks
    ]


def read_product(root: Path) -> dict[str, str]:
    """The text of every Python source of the product, by its path relative to `root`."""
    files = sorted(file for folder in _PRODUCT for file in (root / folder).rglob("*.py"))
    return {str(file.relative_to(root)): file.read_text() for file in files}


def find_place(one: Break, product: dict[str, str]) -> Place:
    """Where the text of a break stands. Raises BreakError unless there is exactly one such place."""
    places = [
        Place(file, text.count("\n", 0, found.start()) + 1)
        for file, text in product.items()
        for found in re.finditer(re.escape(one.find), text)
    ]
    if len(places) == 1:
        return places[0]
    found = f"at {len(places)} places ({', '.join(map(str, places[:3]))})" if places else "nowhere"
    raise BreakError(
        f"break {one.name!r}: its text stands {found} in the product, expected exactly one place: {one.find!r}; "
        "adapt the text in tests/breaks/breaks.yaml to the changed line"
    )
