"""The table of attacks in security.md, from the table that the tests of attacks run. Pure."""

from __future__ import annotations

from tests.faults.attacks import ATTACKS, TESTS


def table() -> str:
    """Markdown: what another user does at each port and socket, and what comes of it."""
    lines = ["| port or socket | another user | outcome | test |", "| --- " * 4 + "|"]
    return "\n".join(
        [*lines, *(f"| {one.at} | {one.does} | {one.outcome} | `{TESTS[one.at]}` ({one.key}) |" for one in ATTACKS)]
    )
