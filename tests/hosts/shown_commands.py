"""The commands with which the README starts jobs on several hosts. A test of each of them is in this folder."""

from __future__ import annotations

import re

from tests.launching import ROOT

_LINE = re.compile(r"^(\S.*?) +# (\w+)$", re.MULTILINE)


def shown_commands() -> dict[str, str]:
    """The commands by the name of what they start the job with."""
    section = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Several hosts\n")[2].partition("\n## ")[0]
    )
    return {name: command for command, name in _LINE.findall(section)}


def shown_words(name: str, *options: str) -> list[str]:
    """The words of one of them after `dynamix`, with more options of the test."""
    words = shown_commands()[name].partition("dynamix ")[2].partition(" | ")[0].split()
    own = words.index("--")
    return [*words[:own], *options, *words[own:]]
