"""The name of a policy as an option of a command."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from dynamix_ps.config.policies import POLICIES, check_name

POLICY_NAMES = f"{', '.join(POLICIES)}, or package.module:Class"


class PolicyName(click.ParamType[str]):
    """A policy that ships, or `package.module:Class`; besides them, what the command itself gives a name."""

    name = "policy"

    def __init__(self, *further: str) -> None:
        self._further = further

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self._further:
            return value
        try:
            return check_name(value)
        except ValueError as error:
            self.fail(f"{error} (got {value!r})", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (*POLICIES, *self._further) if name.startswith(incomplete)]
