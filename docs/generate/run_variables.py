"""The reference of environment variables, from the table of run variables. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dynamix_ps.config.variables import VARIABLES, Variable


def of_the_user() -> str:
    """Markdown: the variables that people set, in their shell or under `env` of a cluster file."""
    return _table((one for one in VARIABLES if not one.of_one_run), with_place=True)


def of_one_run() -> str:
    """Markdown: the variables that belong to one run."""
    return _table((one for one in VARIABLES if one.of_one_run), with_place=False)


def _table(variables: Iterable[Variable], with_place: bool) -> str:
    place = "| `env` of a cluster file " if with_place else ""
    lines = [f"| variable | meaning {place}| read in |", "| --- " * (4 if with_place else 3) + "|"]
    for one in variables:
        allowed = f"| {'yes' if one.in_cluster_file else 'refused'} " if with_place else ""
        lines.append(f"| `{one.name}` | {one.meaning} {allowed}| {one.read_in} |")
    return "\n".join(lines)
