"""The reference of the command line, from the click commands and the errors. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from dynamix_ps import errors
from dynamix_ps.cli.main import cli
from dynamix_ps.exit_codes import MEANINGS


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something by itself, with its whole name (`dynamix policy train`)."""
    yield from _below("dynamix", cli)


def reference() -> str:
    """Markdown with a section per command."""
    return "\n\n".join(_markdown(name, command) for name, command in commands())


def exit_codes() -> str:
    """Markdown: a table of exit codes and the errors behind them."""
    rows: dict[int, list[str]] = {code: [] for code in MEANINGS}
    for name, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, errors.DynamixError):
            rows[found.exit_code].append(f"`{name}`")
    lines = ["| code | meaning | errors |", "| --- | --- | --- |"]
    lines += [f"| {code} | {MEANINGS[code]} | {', '.join(names)} |" for code, names in sorted(rows.items())]
    return "\n".join(lines)


def _below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _below(f"{name} {inner}", found)


def _markdown(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    lines = [f"### `{name}`", "", "```", f"{' '.join([name, *command.collect_usage_pieces(context)])}", "```", ""]
    lines += [_help(command), ""]
    options = [one for one in command.params if isinstance(one, click.Option)]
    if options:
        lines += ["| option | meaning |", "| --- | --- |"]
        lines += [f"| {_option_names(option)} | {_option_text(option, context)} |" for option in options]
    return "\n".join(lines).strip()


def _help(command: click.Command) -> str:
    """The help text; what click keeps as it is (after a backspace) becomes a code block."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if not paragraph.startswith("\b"):
            parts.append(" ".join(paragraph.split()))
            continue
        title, *code = paragraph.removeprefix("\b\n").splitlines()
        parts.append("\n".join([title, "", "```", *(line.strip() for line in code), "```"]))
    return "\n\n".join(parts)


def _option_names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names}{' *' if option.required else ''}"


def _option_text(option: click.Option, context: click.Context) -> str:
    parts = [option.help or ""]
    if isinstance(option.type, click.Choice):
        parts.append("One of " + ", ".join(f"`{choice}`" for choice in option.type.choices) + ".")
    if option.required:
        parts.append("Required.")
    if option.multiple:
        parts.append("May be given several times.")
    default = option.get_default(context, call=False)
    if option.show_default and default is not None and not callable(default):
        parts.append(f"Default: `{default}`.")
    return " ".join(filter(None, parts)).replace("|", "\\|")
