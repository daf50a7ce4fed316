"""The reference of the cluster file, from the schema. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dynamix_ps.config.descriptions import describe_keys
from dynamix_ps.config.schema import Config

Json = Mapping[str, Any]

_UNIT_IN_NAME = re.compile(r"_(s|bytes|windows)$")
_UNIT_IN_TEXT = re.compile(r"^(Iterations|Windows|Batches|Passes)\b|\bin (samples|units)\b")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the cluster file; texts are Markdown."""

    path: (
        str  # "policy.ppo.gamma"; lists of sections show as "cluster.workers[]", sections by name as "cluster.hosts{}"
    )
    value: str
    default: str
    unit: str
    example: str  # YAML of the value
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """The keys that stand together under one heading."""

    path: str  # "" is the top level
    about: str
    keys: tuple[Key, ...]


def sections(schema: Json | None = None) -> tuple[Section, ...]:
    """Every section of the cluster file, the top level first, in the order of the schema."""
    if schema is None:
        describe_keys()
        schema = Config.model_json_schema()
    return tuple(_sections(schema, schema, ""))


def reference() -> str:
    """Markdown with a heading per section and per key."""
    return "\n\n".join(_markdown(section) for section in sections())


def _sections(node: Json, whole: Json, path: str) -> Iterator[Section]:
    required = node.get("required", ())
    inner: list[tuple[Json, str]] = []
    keys: list[Key] = []
    for name, found in node["properties"].items():
        here = f"{path}.{name}" if path else name
        section, brackets = _section_of(found, whole)
        if section is None:
            keys.append(_key(here, name, found, name in required))
        else:
            inner.append((section, here + brackets))
            keys.append(_link(inner[-1][1], found, section, name in required))
    yield Section(path, _one_line(node.get("description", "")), tuple(keys))
    for section, here in inner:
        yield from _sections(section, whole, here)


def _section_of(found: Json, whole: Json) -> tuple[Json | None, str]:
    """The section that a key holds, if it holds one; brackets where it holds a list of them, or several by name."""
    for option in (found, *found.get("anyOf", ())):
        by_name = option.get("additionalProperties", {})
        for node, brackets in ((option, ""), (option.get("items", {}), "[]"), (by_name, "{}")):
            if isinstance(node, Mapping) and "$ref" in node:
                section = whole["$defs"][node["$ref"].rpartition("/")[2]]
                if "properties" in section:
                    return section, brackets
    return None, ""


def _key(path: str, name: str, found: Json, required: bool) -> Key:
    example = found["examples"][0] if found.get("examples") else found.get("default")
    return Key(
        path=path,
        value=_value(found),
        default="required" if required else _code(found.get("default")),
        unit=_unit(name, found.get("description", "")),
        example="" if example is None else _yaml(example),
        meaning=_one_line(found.get("description", "")),
    )


def _link(path: str, found: Json, section: Json, required: bool) -> Key:
    link = f"[{_KINDS_OF_SECTIONS.get(path[-2:], 'section')}](#{anchor(path)})"
    short_forms = [_type(option) for option in found.get("anyOf", ()) if not _holds_section(option)]
    default = "required" if required else _code(found["default"]) if short_forms else ""
    about = _one_line(found.get("description") or section.get("description", ""))
    example = _yaml(found["examples"][0]) if found.get("examples") else ""
    return Key(path, " or ".join((*short_forms, link)), default, "", example, about)


_KINDS_OF_SECTIONS = {"[]": "list of sections", "{}": "names with sections"}


def _holds_section(option: Json) -> bool:
    return "$ref" in option or "$ref" in option.get("items", {})


def _unit(name: str, description: str) -> str:
    """By the end of the name, else by what the description says; empty where it says nothing."""
    said = _UNIT_IN_NAME.search(name) or _UNIT_IN_TEXT.search(description)
    return next(filter(None, said.groups()), "").lower() if said else ""


def _value(found: Json) -> str:
    """Type and range in words."""
    options = [option for option in found.get("anyOf", [found]) if option.get("type") != "null"]
    text = " or ".join(_type(option) for option in options)
    return f"{text}, or `null`" if len(options) < len(found.get("anyOf", [])) else text


_PLAIN = {"boolean": "`true`, `false`", "object": "names with texts", "string": "text"}  # by JSON type


def _type(node: Json) -> str:
    kind = node.get("type", "")
    if options := node.get("enum") or [node[name] for name in ("const",) if name in node]:
        return ", ".join(map(_code, options))
    if kind in ("integer", "number"):
        return " ".join(filter(None, ("whole number" if kind == "integer" else "number", _range(node))))
    if kind == "array":
        return f"list: {_type(node['items'])}"
    if "pattern" in node:
        return f"text like `{node['pattern']}`"
    if kind == "object" and node.get("additionalProperties") is True:
        return "names with any values"
    return _PLAIN[kind]


def _range(node: Json) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}"
    parts = [
        f"from {_number(low)}" if low is not None else "",
        f"above {_number(above)}" if above is not None else "",
        f"to {_number(high)}" if high is not None else "",
        f"below {_number(below)}" if below is not None else "",
    ]
    return " ".join(filter(None, parts))


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def _markdown(section: Section) -> str:
    """A list of the sections within this one; then each of the other keys under a heading, which gives it an anchor."""
    inner = [key for key in section.keys if "](#" in key.value]
    parts = [f"### `{section.path}`" if section.path else "### Top level", section.about]
    parts.append("\n".join(f"- `{_name(key)}` ({_facts(key)}): {key.meaning}" for key in inner))
    for key in section.keys:
        if key not in inner:
            parts += [f"#### `{key.path}`", key.meaning, f"value: {_facts(key)}"]
    return "\n\n".join(filter(None, parts))


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2].rstrip("[]{}")


def _facts(key: Key) -> str:
    """Value, unit, default and example in one line; an example that is the default is left out."""
    facts = [key.value, f"in {key.unit}" if key.unit else "", key.default]
    if key.default not in ("", "required"):
        facts[-1] = f"default: {key.default}"
    if key.example and f"`{key.example}`" != key.default:
        facts.append(f"example: `{_name(key)}: {key.example}`")
    return " · ".join(filter(None, facts))


def anchor(path: str) -> str:
    """Of the heading of a section, as viewers of Markdown make it."""
    return path.replace(".", "").rstrip("[]{}") or "top-level"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _code(value: object) -> str:
    return f"`{_yaml(value)}`"


def _yaml(value: object) -> str:
    if value == "off":  # the schema reads it unquoted too
        return "off"
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
