from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.parts.sources.class_table import ClassTable
from benchmarks.parts.structure import LIMITS, main

SOURCES = {
    "base.py": """
class Policy:
    name: str
    def decide(self): ...
class _Hidden: ...
""",
    "inner/__init__.py": """
from one.base import Policy
""",
    "inner/below.py": """
from . import Policy as Known
from .. import base
class Middle(Known[int]):
    def decide(self): self.count = 1
    def more(self): other.attribute = self.last = 2
class Leaf(Middle, list): ...
class Side(base.Policy): ...
class Policy(ValueError): ...
class _Hidden: ...
""",
}


@pytest.fixture
def table(tmp_path: Path) -> ClassTable:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    (tmp_path / "one" / "__init__.py").touch()
    for name, text in SOURCES.items():
        (tmp_path / "one" / name).write_text(text)
    return ClassTable(tmp_path, ["one"])


def test_bases_are_found_under_the_names_that_a_module_imports(table: ClassTable) -> None:
    depths = {f"{one.module}.{one.name}": table.depth(one) for one in table if not one.name.startswith("_")}
    assert depths == {
        "one.base.Policy": 1,
        "one.inner.below.Middle": 2,
        "one.inner.below.Leaf": 3,
        "one.inner.below.Side": 2,
        "one.inner.below.Policy": 1,
    }


def test_a_class_has_the_methods_and_attributes_of_its_bases(table: ClassTable) -> None:
    leaf = next(one for one in table if one.name == "Leaf")
    assert table.methods(leaf) == {"decide", "more"}
    assert table.attributes(leaf) == {"name", "count", "last"}


def test_public_names_of_several_classes_are_found(table: ClassTable) -> None:
    assert table.ambiguous() == {"Policy": ["one.base", "one.inner.below"]}


@pytest.mark.parametrize("more", [0, 1])
def test_a_figure_above_its_limit_is_named(
    more: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured() -> Iterator[tuple[str, float]]:
        yield "depth of inheritance", LIMITS["depth of inheritance"].most + more

    monkeypatch.setattr("sys.argv", ["structure"])
    assert main(measured) == more
    assert ("error: depth of inheritance: " in capsys.readouterr().err) == bool(more)
