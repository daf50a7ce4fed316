"""Checks of what a page says about the repository: paths, cluster files, commands. Pure but for reading files."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import yaml

from docs.generate.commands import commands
from docs.generate.pages import ROOT
from dynamix_ps.config.rules import findings
from dynamix_ps.config.schema import Config

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_OF_A_COMMIT = re.compile(r"`[0-9a-f]{8}`: `[^`\n]+`")  # a command that this commit has
_TOP = ("dynamix_ps", "server_hooks", "worker_hooks", "benchmarks", "tests", "configs", "docker", "docs", "examples")
_PATH = re.compile(rf"(?:{'|'.join(_TOP)})/[\w./-]*")
_ASSIGNED = re.compile(r"^([A-Z][A-Z_]*=\S+ )+")
_MAKE = re.compile(r"^(\w[\w-]*):", re.MULTILINE)


def problems(markdown: str) -> Iterator[str]:
    """Everything in a page that is not true of the repository as it is."""
    for _, language, indented in _FENCE.findall(markdown):
        code = textwrap.dedent(indented)
        if language == "yaml":
            yield from _wrong_cluster_file(code)
        elif language == "python":
            yield from _wrong_python(code)
        else:
            yield from _wrong_commands(code.splitlines())
    text = _OF_A_COMMIT.sub("", _FENCE.sub("", markdown))
    for span in _SPAN.findall(text):
        if _PATH.fullmatch(span) and not (ROOT / span).exists():
            yield f"`{span}` is not in the repository"
        yield from _wrong_commands([span])


def _wrong_cluster_file(code: str) -> Iterator[str]:
    """Of a whole cluster file or of some keys of one; other YAML says so in its first line, `# not a cluster file`."""
    if code.startswith("# not a cluster file"):
        return
    try:
        data: dict[str, Any] = yaml.safe_load(code)
        config = Config.model_validate_json(json.dumps({"cluster": {"workers": [{}]}} | data))
    except (yaml.YAMLError, pydantic.ValidationError, TypeError) as error:
        yield f"a YAML example is no cluster file: {error}"
        return
    for broken in findings(config):
        yield f"a YAML example breaks a rule: {'.'.join(map(str, broken.path))} {broken.message}"


def _wrong_python(code: str) -> Iterator[str]:
    try:
        compile(code, "example", "exec")
    except SyntaxError as error:
        yield f"a Python example does not compile: {error}"


def _wrong_commands(lines: list[str]) -> Iterator[str]:
    for line in lines:
        words = _ASSIGNED.sub("", line.partition("  #")[0].removeprefix("$ ")).split()
        match words:
            case ["dynamix", *rest] | ["exec", "dynamix", *rest]:
                yield from _wrong_dynamix(line, rest)
            case ["python", "-m", module, *_] if module.split(".")[0] in _TOP and find_spec(module) is None:
                yield f"`{line}`: there is no module {module}"
            case ["make", target, *_] if re.fullmatch(r"[\w-]+", target) and target not in _targets():
                yield f"`{line}`: the Makefile has no target {target}"


def _wrong_dynamix(line: str, words: list[str]) -> Iterator[str]:
    known = {name.removeprefix("dynamix "): command for name, command in commands()}
    if not words or words[0].startswith("-") or words[0] in ("COMMAND", "..."):
        return
    named = [name for name in known if words[: len(name.split())] == name.split()]
    groups = {name.rpartition(" ")[0] for name in known}
    if not named:
        if " ".join(words) not in groups:
            yield f"`{line}`: there is no such command"
        return
    name = max(named, key=len)
    command = known[name]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    for word in words[len(name.split()) :]:
        if word in ("--", "|") or command.ignore_unknown_options:
            break
        if word.startswith("-") and word.partition("=")[0] not in options:
            yield f"`{line}`: {name} has no option {word}"


def _targets() -> set[str]:
    return set(_MAKE.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def missing_targets(page: Path, markdown: str) -> Iterator[str]:
    """Relative links of a page, and anchors in them, that lead nowhere."""
    text = _SPAN.sub("", _FENCE.sub("", markdown))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists():
            yield f"({link}) leads to no file"
        elif fragment and target.suffix == ".md" and fragment not in anchors(target.read_text(encoding="utf-8")):
            yield f"({link}) names no heading of that page"


def anchors(markdown: str) -> set[str]:
    """Of all headings of a page, as Markdown viewers make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", markdown), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", plain))
    return found
