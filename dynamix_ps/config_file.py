"""A cluster's YAML file to `Config` and back. Every error at once, each as `FILE:LINE: key.path: message`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from dynamix_ps.config import Config
from dynamix_ps.config_rules import findings
from dynamix_ps.config_yaml import MAX_BYTES, Document, Dumper, Path, Problem, read_yaml
from dynamix_ps.errors import ConfigError

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


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check a cluster file.

    Raises:
        ConfigError: the file cannot be read, or one line per error in it.
    """
    name = os.fspath(path)
    document = read_yaml(_read_text(name))
    problems = list(document.problems)
    config: Config | None = None
    if document.data is None and not problems:
        problems.append(Problem(1, (), "the file is empty; it needs at least `cluster:` with `workers:`"))
    if document.data is not None:
        config, found = _validate(document)
        problems.extend(found)
    if config is None or problems:
        raise ConfigError(_report(name, problems))
    return config


def dump_config(config: Config) -> str:
    """YAML text from which `load_config` makes an equal Config."""
    data = config.model_dump(mode="json")
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, width=120)


def check_rules(config: Config, origin: str) -> Config:
    """The same config, if no rule between its keys is broken.

    For configs that were changed after loading; `origin` says by what, e.g. "--policy ppo".

    Raises:
        ConfigError: one line per broken rule.
    """
    broken = [f"{origin}: {_dotted(item.path)}: {item.message} (got {item.got})" for item in findings(config)]
    if broken:
        raise ConfigError("\n".join(broken))
    return config


def _read_text(name: str) -> str:
    try:
        with open(name, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise ConfigError(f"{name}: is a directory; give the YAML file itself") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{name}: no such file; examples are in configs/") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES} bytes; this cannot be a cluster file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text (byte {raw[error.start]:#04x}); save it as UTF-8") from error


def _validate(document: Document) -> tuple[Config | None, list[Problem]]:
    """Field errors and rule errors together: what is wrong is left out, and the rules judge the rest."""
    problems: list[Problem] = []
    unread = [problem.path for problem in document.problems]
    wrong = list(unread)
    data = document.data
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path: Path = tuple(item["loc"])
            if _echo_of_inner_error(dict(item)):
                continue
            if item["input"] is not None or path not in unread:
                problems.append(Problem(document.line(path), path, _message(dict(item), path, document)))
                wrong.append(path)
            data = _without(data, path)
        try:
            config = Config.model_validate(data)
        except ValidationError:
            return None, problems
    for finding in findings(config):
        if not any(_related(used, bad) for used in (finding.path, *finding.uses) for bad in wrong):
            got = _shorten(str(finding.got)) + ("" if finding.path in document.lines else ", the default")
            message = f"{finding.message} (got {got})"
            problems.append(Problem(document.line(finding.path), finding.path, message))
    return config, problems


def _echo_of_inner_error(item: dict[str, Any]) -> bool:
    """pydantic calls a list too short when one of its items is wrong; the item's own error is enough."""
    return bool(item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])


def _message(item: dict[str, Any], path: Path, document: Document) -> str:
    kind: str = item["type"]
    context: dict[str, Any] = item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key; {_known_keys(path)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        message = f"must be one of {', '.join(choices)}{_guess(document.texts.get(path, ''), choices)}"
    else:
        message = _MESSAGES.get(kind, str(item["msg"])).format(**context)
    return message if kind == "missing" else f"{message} (got {_got(item['input'], path, document)})"


def _got(value: object, path: Path, document: Document) -> str:
    if isinstance(value, dict | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    shown = _shorten(document.texts.get(path, ""))
    return repr(shown) if isinstance(value, str) else shown or "nothing"


def _known_keys(path: Path) -> str:
    known = list(_section_at(path[:-1]).model_fields)
    key = str(path[-1])
    guess = _guess(key, known).removeprefix("; ")
    return guess or f"known here: {', '.join(known)}"


def _guess(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word[:40].lower(), known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def _section_at(path: Path) -> type[BaseModel]:
    section: type[BaseModel] = Config
    for part in path:
        if isinstance(part, str):
            section = next(_models_in(section.model_fields[part].annotation))
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


def _dotted(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_shorten(part)}" for part in path)
    return text.removeprefix(".")


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _report(name: str, problems: list[Problem]) -> str:
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = []
    for problem in ordered[:_MAX_SHOWN]:
        key = _dotted(problem.path)
        # A key may hold any character; keep one error on one line.
        where = f"{name}:{problem.line}: {key}: " if key else f"{name}:{problem.line}: "
        lines.append("".join(char if char.isprintable() else repr(char)[1:-1] for char in where + problem.message))
    if len(ordered) > _MAX_SHOWN:
        lines.append(f"... and {len(ordered) - _MAX_SHOWN} more")
    return "\n".join(lines)
