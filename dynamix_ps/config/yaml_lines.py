"""Reads YAML text into plain values, with the line of every key and item. It does not know what the keys mean.

It is stricter than YAML 1.1 where YAML surprises: duplicate keys, merge keys, custom tags and several documents are
errors; `010` and `22:22` are no integers, `1e-3` is a number, dates stay text. Size, nesting and the number of values
are bounded, so that hostile files fail quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_VALUES = 50_000  # aliases expanded; 1,024 workers with all their keys are a fifth of it
MAX_DEPTH = 20
_MAX_INT_DIGITS = 18

_BOOLEANS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_RESOLVERS = (
    ("bool", r"(?i:yes|no|true|false|on|off)", "yYnNtTfFoO"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
)
_PATTERNS = {kind: re.compile(rf"(?:{pattern})\Z") for kind, pattern, _ in _RESOLVERS}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a file: line, key and message."""

    line: int
    path: Path
    message: str


@dataclass(slots=True)
class Document:
    """Plain values (mappings as dict, lists as tuple) and the line of each."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)  # counted from 1
    texts: dict[Path, str] = field(default_factory=dict)  # scalars as the user wrote them
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Line of a key, or of the nearest section around it if it is not in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _StopError(Exception):
    """Reading cannot continue after this problem."""

    def __init__(self, line: int, message: str, path: Path = ()) -> None:
        self.problem = Problem(line, path, message)


def _install_resolvers(owner: type[yaml.resolver.BaseResolver]) -> None:
    owner.yaml_implicit_resolvers = {}
    for kind, _, first in _RESOLVERS:
        owner.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", _PATTERNS[kind], list(first.replace("\0", "")))
    owner.yaml_implicit_resolvers.setdefault("", []).append(("tag:yaml.org,2002:null", _PATTERNS["null"]))


class _BadScalarError(Exception):
    """One value is not usable; reading continues."""


class _Loader(yaml.SafeLoader):
    """Composes nodes only, and refuses deep or endless files while reading."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._nodes += 1
        line: int = self.line + 1  # line of the reader, at most a few tokens ahead
        if self._depth > MAX_DEPTH:
            raise _StopError(line, f"nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_VALUES:
            raise _StopError(line, f"more than {MAX_VALUES} values")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class Dumper(yaml.SafeDumper):
    """Writes YAML that `read_yaml` reads back as the same value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_install_resolvers(_Loader)
_install_resolvers(Dumper)


def read_yaml(text: str) -> Document:
    """Values and lines of one YAML document. Never raises; `problems` lists the errors."""
    document = Document()
    try:
        root = _compose(text)
        if root is not None:
            document.data = _Walk(document).value(root, (), 1)
    except _StopError as stop:
        document.problems.append(stop.problem)
    return document


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _StopError(line, f"character {chr(error.character)!r} is not allowed in YAML") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = ", ".join(part for part in (error.problem, error.context) if part)
        raise _StopError(mark.line + 1 if mark else 1, f"not valid YAML: {about}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # PyYAML lets some escapes reach chr() and int()
        raise _StopError(1, f"not valid YAML: {error}") from error


class _Walk:
    """Turns nodes into values; visits each value of the document with aliases expanded once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._visits = 0

    def value(self, node: yaml.Node, path: Path, line: int) -> Any:
        self._visits += 1
        if self._visits > MAX_VALUES:
            raise _StopError(line, f"more than {MAX_VALUES} values with aliases expanded", path)
        if len(path) > MAX_DEPTH:
            raise _StopError(line, f"nested deeper than {MAX_DEPTH} levels", path)
        self._document.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return dict(self._pairs(node, path))
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return tuple(
                self.value(item, (*path, index), item.start_mark.line + 1) for index, item in enumerate(node.value)
            )
        if isinstance(node, yaml.ScalarNode):
            self._document.texts[path] = node.value
            try:
                return _scalar(node)
            except _BadScalarError as error:
                self._problem(line, path, str(error))
                return None
        self._problem(line, path, f"the tag {_short(node.tag)} is not supported")
        return None

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(line, path, "a key must be a plain word")
                continue
            try:
                key = _text(key_node.value)
            except _BadScalarError as error:
                self._problem(line, path, f"a key {error}")
                continue
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._problem(line, path, "merge keys (<<) are not supported; write the keys out")
            elif key in seen:
                self._problem(line, (*path, key), f"duplicate key, first set on line {seen[key]}")
            else:
                seen[key] = line
                yield key, self.value(value_node, (*path, key), line)

    def _problem(self, line: int, path: Path, message: str) -> None:
        self._document.problems.append(Problem(line, path, message))


def _scalar(node: yaml.ScalarNode) -> Any:
    text, kind = node.value, node.tag.removeprefix("tag:yaml.org,2002:")
    if kind in ("str", "merge"):
        return _text(text)
    if kind not in _PATTERNS:
        raise _BadScalarError(f"the tag {_short(node.tag)} is not supported")
    if not _PATTERNS[kind].match(text):
        raise _BadScalarError(f"is not a value of type {kind}")
    if kind == "int" and len(text) > _MAX_INT_DIGITS:
        raise _BadScalarError("is too large a number")
    return _READERS[kind](text)


_READERS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: _BOOLEANS[text.lower()],
    "int": lambda text: int(text.replace("_", "")),
    "float": lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
}


def _text(text: str) -> str:
    if "\0" in text:
        raise _BadScalarError("contains a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _BadScalarError("contains half a character (a lone surrogate)") from error
    return text


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:40]
