"""The schema is the source of the reference of the cluster file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dynamix_ps.config.descriptions import describe_keys
from dynamix_ps.config.schema import Config


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field
        for section in _models_in(field.annotation):
            yield from fields_of(section, f"{prefix}{name}.")


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


describe_keys()
FIELDS = dict(fields_of(Config))


@pytest.mark.parametrize("name", FIELDS)
def test_every_key_has_a_description_of_whole_sentences(name: str) -> None:
    described = FIELDS[name].description
    assert described is not None
    assert described.endswith(".")
    assert not any(line.startswith(" ") for line in described.splitlines())


@pytest.mark.parametrize("name", [name for name in FIELDS if name.endswith("_s")])
def test_a_key_in_seconds_says_so(name: str) -> None:
    assert "second" in (FIELDS[name].description or "")


def numbers_in(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every number in a JSON schema, wherever it stands: in lists, in optional values, in sections."""
    if isinstance(node, Mapping):
        if node.get("type") in ("integer", "number"):
            yield path, node
        for key, inner in node.items():
            yield from numbers_in(inner, f"{path}/{key}")
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from numbers_in(inner, f"{path}/{index}")


NUMBERS = dict(numbers_in(Config.model_json_schema()))


@pytest.mark.parametrize("where", NUMBERS)
def test_every_number_has_two_bounds(where: str) -> None:
    bounds = NUMBERS[where]
    assert bounds.keys() & {"minimum", "exclusiveMinimum"}
    assert bounds.keys() & {"maximum", "exclusiveMaximum"}


def test_the_walk_finds_numbers_in_lists_options_and_sections() -> None:
    names = "\n".join(NUMBERS)
    for part in (
        "/WorkerSection/properties/max/anyOf",
        "/PolicySection/properties/sizes/anyOf/0/items",
        "/Ppo/properties/hidden",
    ):
        assert part in names
    assert len(NUMBERS) > 45
