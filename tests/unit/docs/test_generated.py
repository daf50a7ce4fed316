"""The generated references are complete and up to date, and their examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import click
import pytest
import yaml
from pydantic import BaseModel

from docs.generate.checks import anchors
from docs.generate.cluster_file import anchor, reference, sections
from docs.generate.commands import commands, exit_codes
from docs.generate.pages import current, updated, with_parts
from docs.generate.run_variables import of_one_run, of_the_user
from dynamix_ps.cli.main import cli
from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.schema import Config
from dynamix_ps.config.variables import VARIABLES
from dynamix_ps.errors import DynamixError


@pytest.mark.parametrize("page", updated())
def test_a_page_is_what_the_code_makes_of_it(page: str) -> None:
    assert current(page) == updated()[page], "run `python -m docs.generate`"


def _keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key by the fields of the models themselves, not by the JSON schema that the reference is made from."""
    for name, field in model.model_fields.items():
        here = f"{path}{name}"
        inner, brackets = _model_in(field.annotation)
        yield f"{here}{brackets}"
        if inner is not None:
            yield from _keys_of(inner, f"{here}{brackets}.")


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    for argument in get_args(annotation):
        inner, brackets = _model_in(argument)
        if inner is not None:
            return inner, brackets or {tuple: "[]", dict: "{}"}.get(getattr(annotation, "__origin__", None), "")
    return None, ""


def test_the_reference_lists_every_key_of_the_schema() -> None:
    listed = [key.path for section in sections() for key in section.keys]
    assert sorted(listed) == sorted(_keys_of(Config))


def test_every_section_has_a_heading_that_its_key_leads_to() -> None:
    text = reference()
    for section in sections()[1:]:
        assert f"### `{section.path}`" in text
        assert f"(#{anchor(section.path)})" in text


def test_every_key_has_a_heading_of_its_own_and_so_an_anchor() -> None:
    headings = re.findall(r"^####? `(.+)`$", reference(), re.MULTILINE)
    assert sorted(headings) == sorted(_keys_of(Config))
    assert len(anchors(reference())) == len(headings) + 1, "of which no two are the same; one more is the top level's"


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("window", "iterations"), ("batch.min", "units"), ("bucket_bytes", "bytes"), ("timeouts.job_s", "s"),
        ("policy.safety.rest_windows", "windows"), ("policy.ppo.gamma", ""),
    ],
)  # fmt: skip
def test_a_quantity_has_its_unit(path: str, unit: str) -> None:
    assert {key.path: key.unit for section in sections() for key in section.keys}[path] == unit


def _nested(path: str, value: object) -> dict[str, Any]:
    """{"policy": {"name": value}} for "policy.name"; "workers[]" is a list of sections, "hosts{}" has them by name."""
    *sections_above, name = path.split(".")
    data: dict[str, Any] = {name.rstrip("[]{}"): value}
    for part in reversed(sections_above):
        inner = [data] if part.endswith("[]") else {"a": data} if part.endswith("{}") else data
        data = {part.rstrip("[]{}"): inner}
    return data


@pytest.mark.parametrize("key", [key for section in sections() for key in section.keys if key.example])
def test_an_example_of_a_key_is_accepted(key: Any) -> None:
    cluster = {"cluster": {"workers": [{}, {}]}}
    data = _nested(key.path, yaml.safe_load(key.example))
    if "cluster" in data:
        data["cluster"] = cluster["cluster"] | data["cluster"]
    Config.model_validate(cluster | data, strict=False)


def test_every_command_is_listed_with_its_options() -> None:
    known = dict(commands())
    assert "dynamix policy train" in known and "dynamix probe" in known and "dynamix probe serve" in known
    text = current("cli.md")
    for name, command in known.items():
        assert f"### `{name}`" in text
        options = [option for one in command.params if isinstance(one, click.Option) for option in one.opts]
        assert all(f"`{option}`" in text for option in options)
    assert {name.split()[1] for name in known} == set(cli.list_commands(None))  # type: ignore[arg-type]


def test_every_key_with_a_value_has_an_example_and_a_meaning() -> None:
    keys = [key for section in sections() for key in section.keys]
    assert not [key.path for key in keys if not key.meaning]
    assert not [key.path for key in keys if not key.example and "](#" not in key.value]


def test_every_policy_that_ships_is_described() -> None:
    assert all(f"| `{name}` |" in current("policies.md") for name in POLICIES)


def test_every_variable_of_the_table_is_listed_once() -> None:
    listed = re.findall(r"^\| `(\w+)`", f"{of_the_user()}\n{of_one_run()}", re.MULTILINE)
    assert sorted(listed) == sorted(variable.name for variable in VARIABLES)


def test_every_exit_code_is_listed() -> None:
    def codes(error: type[DynamixError]) -> set[int]:
        return {error.exit_code}.union(*(codes(inner) for inner in error.__subclasses__()))

    listed = {int(line.split("|")[1]) for line in exit_codes().splitlines()[2:]}
    assert listed >= codes(DynamixError) | {0, 130}


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks the generated parts"):
        with_parts("# Page\n", "page.md", {"keys": reference})
    with pytest.raises(ValueError, match="has no"):
        with_parts("<!-- generated: keys -->\n", "page.md", {"keys": reference})
