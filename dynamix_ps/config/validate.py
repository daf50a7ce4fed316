"""Loads a YAML file into a strict pydantic model. Reports all errors at once, as `FILE:LINE: key.path: message`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dynamix_ps.config.yaml_lines import MAX_BYTES, Document, Path, Problem, read_yaml
from dynamix_ps.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)

_MAX_SHOWN = 50

_MESSAGES = {
    "missing": "is required",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} items",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A broken rule between keys: the key to report, and every key that the rule reads."""

    path: Path
    message: str
    got: object
    uses: tuple[Path, ...] = ()


def no_rules(model: BaseModel) -> Iterator[BrokenRule]:
    """For models without rules between keys."""
    yield from ()


def load_model(
    path: str | os.PathLike[str],
    model: type[_Model],
    rules: Callable[[_Model], Iterable[BrokenRule]] = no_rules,
    examples: str = "",
) -> _Model:
    """Read and check a file.

    `rules` yields the broken rules between keys; each field of the model is valid by itself. `examples` says where
    to find good files.

    Raises:
        ConfigError: the file cannot be read, or has errors; the text has one line per error.
    """
    name = os.fspath(path)
    document = read_yaml(read_text(name, examples))
    problems = list(document.problems)
    loaded: _Model | None = None
    if document.data is None and not problems:
        needed = ", ".join(f"`{key}:`" for key, field in model.model_fields.items() if field.is_required())
        problems.append(Problem(1, (), f"the file is empty; it needs at least {needed}"))
    if document.data is not None:
        loaded, found = _validate(document, model, rules)
        problems.extend(found)
    if loaded is None or problems:
        raise ConfigError(_report(name, problems))
    return loaded


def read_text(name: str, examples: str = "") -> str:
    """The text of a file of at most MAX_BYTES. Raises ConfigError, which says what to do."""
    try:
        with open(name, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise ConfigError(f"{name}: is a directory; give the file itself") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{name}: no such file{examples and f'; {examples}'}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES} bytes; this cannot be the right file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text (byte {raw[error.start]:#04x}); save it as UTF-8") from error


def _validate(
    document: Document, model: type[_Model], rules: Callable[[_Model], Iterable[BrokenRule]]
) -> tuple[_Model | None, list[Problem]]:
    """Field errors and rule errors together: the rules check the data without the wrong fields."""
    problems: list[Problem] = []
    unread = [problem.path for problem in document.problems]
    wrong = list(unread)
    data = document.data
    try:
        loaded = model.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path: Path = tuple(item["loc"])
            if _echo_of_inner_error(dict(item)):
                continue
            if item["input"] is not None or path not in unread:
                problems.append(Problem(document.line(path), path, _message(dict(item), path, document, model)))
                wrong.append(path)
            data = _without(data, path)
        try:
            loaded = model.model_validate(data)
        except ValidationError:
            return None, problems
    for finding in rules(loaded):
        if not any(_related(used, bad) for used in (finding.path, *finding.uses) for bad in wrong):
            got = _shorten(str(finding.got)) + ("" if finding.path in document.lines else ", the default")
            message = f"{finding.message} (got {got})"
            problems.append(Problem(document.line(finding.path), finding.path, message))
    return loaded, problems


def _echo_of_inner_error(item: dict[str, Any]) -> bool:
    """Whether pydantic calls a list too short only because an item is wrong; the item's own error is enough."""
    return bool(item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])


def _message(item: dict[str, Any], path: Path, document: Document, model: type[BaseModel]) -> str:
    kind: str = item["type"]
    context: dict[str, Any] = item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key; {_known_keys(path, model)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        message = f"must be one of {', '.join(choices)}{_guess(document.texts.get(path, ''), choices)}"
    else:
        known = _MESSAGES.get(kind)
        message = known.format(**context) if known else str(item["msg"]).removeprefix("Value error, ")
    return message if kind == "missing" else f"{message} (got {_got(item['input'], path, document)})"


def _got(value: object, path: Path, document: Document) -> str:
    if isinstance(value, dict | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    shown = _shorten(document.texts.get(path, ""))
    return repr(shown) if isinstance(value, str) else shown or "nothing"


def _known_keys(path: Path, model: type[BaseModel]) -> str:
    known = list(_section_at(path[:-1], model).model_fields)
    key = str(path[-1])
    guess = _guess(key, known).removeprefix("; ")
    return guess or f"known here: {', '.join(known)}"


def _guess(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word[:40].lower(), known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def _section_at(path: Path, section: type[BaseModel]) -> type[BaseModel]:
    for part in path:
        if isinstance(part, str) and part in section.model_fields:  # else a name that the user chose
            section = next(_models_in(section.model_fields[part].annotation), section)
    return section


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _without(data: Any, path: Path) -> Any:
    """The data without the value at `path`; an item of a list becomes an empty section, to keep the count."""
    if not isinstance(data, dict | tuple) or not path:
        return data
    first, rest = path[0], path[1:]
    if isinstance(data, dict) and isinstance(first, str) and first in data:
        kept = {key: value for key, value in data.items() if key != first}
        return {**kept, first: _without(data[first], rest)} if rest else kept
    if isinstance(data, tuple) and isinstance(first, int) and first < len(data):
        item = _without(data[first], rest) if rest else {}
        return (*data[:first], item, *data[first + 1 :])
    return data


def _related(one: Path, other: Path) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def dotted(path: Path) -> str:
    """The path of a key in the form `cluster.workers[0].speed`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_shorten(part)}" for part in path)
    return text.removeprefix(".")


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _report(name: str, problems: list[Problem]) -> str:
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = []
    for problem in ordered[:_MAX_SHOWN]:
        key = dotted(problem.path)
        # A key may hold any character; keep one error on one line.
        where = f"{name}:{problem.line}: {key}: " if key else f"{name}:{problem.line}: "
        lines.append("".join(char if char.isprintable() else repr(char)[1:-1] for char in where + problem.message))
    if len(ordered) > _MAX_SHOWN:
        lines.append(f"... and {len(ordered) - _MAX_SHOWN} more")
    return "\n".join(lines)
