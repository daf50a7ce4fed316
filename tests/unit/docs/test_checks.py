"""The pages describe the repository correctly, and the checks notice when they do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.checks import missing_targets, problems
from docs.generate.pages import DOCS, ROOT
from tests.hosts.shown_commands import shown_commands

PAGES = [
    *sorted(DOCS.glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "benchmarks/results").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_nothing_wrong(page: Path) -> None:
    assert not list(problems(page.read_text(encoding="utf-8")))


def test_the_page_for_beginners_shows_the_commands_of_the_readme_for_several_hosts() -> None:
    assert shown_commands()
    page = (DOCS / "get-started.md").read_text(encoding="utf-8")
    assert all(command in page for command in shown_commands().values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("See `dynamix_ps/no/such/file.py`.", "is not in the repository"),
        ("```yaml\nwindw: 20\n```\n", "windw"),
        ("```yaml\nwindow: 0\n```\n", "window"),
        ("1. A list:\n\n    ```yaml\n    windw: 20\n    ```\n", "windw"),
        ("```yaml\npolicy: {name: no-such-policy}\n```\n", "policy"),
        ("```yaml\nprefetch: 30\nwindow: 20\n```\n", "prefetch must be below window"),
        ("Run `dynamix lunch -c FILE`.", "no such command"),
        ("```\ndynamix launch --no-such-option\n```\n", "no option --no-such-option"),
        ("```\nRAY_ADDRESS=a:1 dynamix lunch\n```\n", "no such command"),
        ("```\nmake no-such-target\n```\n", "no target no-such-target"),
        ("```\npython -m benchmarks.no_such_module\n```\n", "no module benchmarks.no_such_module"),
        ("```python\nfor x in:\n```\n", "does not compile"),
    ],
)
def test_what_is_wrong_is_noticed(text: str, said: str) -> None:
    found = list(problems(text))
    assert len(found) == 1 and re.search(re.escape(said), found[0]), found


@pytest.mark.parametrize(
    "text",
    [
        "See `dynamix_ps/policy/base.py` and `benchmarks/grids/`.",
        "```yaml\n# not a cluster file: a scenario\nwindw: 20\n```\n",
        "```yaml\npolicy: {name: pid, pid: {keep_global: true}}\n```\n",
        "```\ndynamix launch -c FILE -- python train.py --epochs 3\nmake demo\n```\n",
        "`dynamix policy` and `dynamix probe serve` and `dynamix launch --dry-run`",
    ],
)
def test_what_is_right_is_left_alone(text: str) -> None:
    assert not list(problems(text))


def test_a_link_without_a_target_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `word`, two\n", encoding="utf-8")
    text = "[a](page.md#one-word-two) [b](page.md#other) [c](none.md) [d](https://example.org/x) [e](#other)"
    assert [said.split()[0] for said in missing_targets(page, text)] == [
        "(page.md#other)",
        "(none.md)",
        "(#other)",
    ]


def test_a_command_of_a_named_commit_may_be_gone() -> None:
    gone = "`python -m benchmarks.studies.gone`"
    assert list(problems(f"Made by `8a0126b5`: {gone}, 9 s.")) == []
    assert len(list(problems(f"Made by {gone}, 9 s."))) == 1
