"""Breaks of the real code that the model must find: `breaks.yaml` and `ring_breaks.yaml` have them.

    python -m tests.models.membership.broken [NAME ...]

Each break runs in a forked process in which one text of one file of the product is replaced while it is loaded. Prints
the first seed that goes wrong, and the CPU seconds until then.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SEEDS = 1000
_RELOADED = ("dynamix_ps.membership", "worker_hooks", "tests.models.membership")


@dataclass(frozen=True, slots=True)
class Broken:
    """One plausible mistake.

    Attributes:
        file: relative to the root of the tree.
        find: a text that stands there once.
        put: what stands there instead.
        cases: in which it shows, within SEEDS seeds of each.
        is_rule: it switches off a rule of docs/membership.md.
    """

    name: str
    file: str
    find: str
    put: str
    cases: tuple[str, ...]
    is_rule: bool

    def source(self) -> str:
        """The broken file. Raises ValueError unless the text stands there once."""
        text = (ROOT / self.file).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(f"{self.name!r}: its text stands {count} times in {self.file}: {self.find!r}")
        return text.replace(self.find, self.put)


def read_breaks() -> list[Broken]:
    """All breaks, in the order of the files."""
    return [
        Broken(one["name"], one["file"], one["find"], one["put"], tuple(one["cases"]), one.get("rule", False))
        for file in sorted(Path(__file__).parent.glob("*breaks.yaml"))
        for one in yaml.safe_load(file.read_text())
    ]


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from this source."""

    def __init__(self, name: str, file: str, source: CodeType) -> None:
        self._name, self._file, self._source = name, file, source

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, origin=self._file) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._source, module.__dict__)


def first_wrong(one: Broken, seeds: range = range(SEEDS)) -> tuple[str, int, str] | None:
    """The first case, seed and error with this break; None: the model does not find it. In a process of its own."""
    source = compile(one.source(), one.file, "exec")
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.close(reading)
            for name in [name for name in sys.modules if name.startswith(_RELOADED)]:
                del sys.modules[name]
            module = one.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            sys.meta_path.insert(0, _Loader(module, one.file, source))
            with os.fdopen(writing, "w") as out:
                json.dump(_look(one.cases, seeds), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        found = told.read()
    os.waitpid(child, 0)
    if not found:
        raise RuntimeError(f"{one.name!r}: the process that tries it has ended")
    first: list[Any] | None = json.loads(found)
    return None if first is None else (first[0], first[1], first[2])


def _look(cases: Sequence[str], seeds: range) -> tuple[str, int, str] | None:
    from tests.models.membership.checker import CASES, tally

    for name in cases:
        if wrong := tally(CASES[name], seeds, stop=True).wrong:
            seed, told = next(iter(wrong.items()))
            return name, seed, told
    return None


def main() -> int:
    """Try the breaks with these names, or all. Returns 1 if the model does not find one."""
    wanted = sys.argv[1:]
    missed = 0
    for one in read_breaks():
        if wanted and one.name not in wanted:
            continue
        before_s = sum(os.times()[2:4])
        found = first_wrong(one)
        took_s = sum(os.times()[2:4]) - before_s
        missed += found is None
        told = "NOT FOUND" if found is None else f"{found[0]}, seed {found[1]}: {found[2][:150]}"
        print(f"{took_s:5.1f} s  {one.name}: {told}", flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
