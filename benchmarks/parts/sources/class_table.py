"""All classes of some packages, as their sources define them: what they inherit, their methods and their attributes.

Nothing is imported: a class is read from the syntax of its module. A base class counts where it is a class of these
packages, under the name that the module imports.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path

GENERATED = "_pb2"  # by the compiler of protocol buffers
_RECORDS = ("dataclass", "NamedTuple", "BaseModel", "TypedDict")


@dataclass
class SourceClass:
    """A class. `bases` are names as the module knows them, with the module where it is imported from.

    `is_record`: a dataclass, a NamedTuple or a model of pydantic.
    """

    module: str
    name: str
    bases: list[str]
    methods: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    is_record: bool = False


class ClassTable:
    """The classes at the top level of all modules below `folders`, which lie in `root`."""

    def __init__(self, root: Path, folders: list[str]) -> None:
        self._classes: dict[str, SourceClass] = {}
        self._imported: dict[str, str] = {}  # from "module.name" to where the name comes from
        for folder in folders:
            for file in sorted((root / folder).rglob("*.py")):
                if GENERATED in file.name:
                    continue
                parts = file.relative_to(root).with_suffix("").parts
                self._read(file, ".".join(parts[:-1] if parts[-1] == "__init__" else parts))

    def _read(self, file: Path, module: str) -> None:
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), package)
                for alias in node.names:
                    self._imported[f"{module}.{alias.asname or alias.name}"] = f"{origin}.{alias.name}"
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self._classes[f"{module}.{node.name}"] = _read_class(module, node)

    def _found(self, module: str, name: str) -> SourceClass | None:
        full = f"{module}.{name}"
        while full in self._imported:
            full = self._imported[full]
        if full in self._classes:
            return self._classes[full]
        before, _, last = full.rpartition(".")
        outer, _, middle = before.rpartition(".")  # base.Policy, where the module `base` is imported
        origin = self._imported.get(f"{outer}.{middle}") if outer else None
        return self._classes.get(f"{origin}.{last}") if origin else None

    def ancestors(self, one: SourceClass) -> list[SourceClass]:
        """The class itself and all that it inherits from, each once, the nearest first."""
        found, waiting = [one], [one]
        while waiting:
            current = waiting.pop(0)
            for base in current.bases:
                parent = self._found(current.module, base)
                if parent is not None and parent not in found:
                    found.append(parent)
                    waiting.append(parent)
        return found

    def depth(self, one: SourceClass) -> int:
        """How many classes the longest line from this class upwards has; 1 for a class without bases of ours."""
        parents = (self._found(one.module, base) for base in one.bases)
        return 1 + max((self.depth(parent) for parent in parents if parent is not None), default=0)

    def methods(self, one: SourceClass) -> set[str]:
        """Names of all methods that an object of this class has from classes of ours."""
        return set().union(*(each.methods for each in self.ancestors(one)))

    def attributes(self, one: SourceClass) -> set[str]:
        """The same of the attributes that methods set, and that the classes declare."""
        return set().union(*(each.attributes for each in self.ancestors(one)))

    def is_record(self, one: SourceClass) -> bool:
        """Whether it is data, or inherits from data: its attributes are fields."""
        return any(each.is_record for each in self.ancestors(one))

    def __iter__(self) -> Iterator[SourceClass]:
        return iter(self._classes.values())

    def ambiguous(self) -> dict[str, list[str]]:
        """Public names that several modules give to different classes, and these modules."""
        modules = defaultdict(list)
        for one in self:
            if not one.name.startswith("_"):
                modules[one.name].append(one.module)
        return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def _read_class(module: str, node: ast.ClassDef) -> SourceClass:
    bases = [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
    made_by = [*bases, *(ast.unparse(each).partition("(")[0] for each in node.decorator_list)]
    one = SourceClass(module, node.name, bases, is_record=any(name.split(".")[-1] in _RECORDS for name in made_by))
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            one.methods.add(part.name)
            own = part.args.args[0].arg if part.args.args else ""
            one.attributes |= {
                target.attr
                for target in ast.walk(part)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == own
            }
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            one.attributes.add(part.target.id)
    return one
