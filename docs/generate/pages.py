"""Which page holds which generated part, and how a part is put into its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs.generate import attacks, cluster_file, commands, metrics, run_variables
from dynamix_ps.policy.learned import features

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent

# page: {name of the part: what makes its Markdown}
GENERATED: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cluster-file.md": {"keys": cluster_file.reference},
    "variables.md": {"of the user": run_variables.of_the_user, "of one run": run_variables.of_one_run},
    "metrics.md": {
        "windows": partial(metrics.table, "windows.csv"),
        "links": partial(metrics.table, "links.csv"),
        "servers": partial(metrics.table, "servers.csv"),
    },
    "cli.md": {"commands": commands.reference, "exit codes": commands.exit_codes},
    "state.md": {"values": features.table},
    "security.md": {"attacks": attacks.table},
}


def current(page: str) -> str:
    """The text of a page as it is."""
    return (DOCS / page).read_text(encoding="utf-8")


def updated() -> dict[str, str]:
    """The text of every page with generated parts, with these parts as the code makes them now."""
    return {page: with_parts(current(page), page, parts) for page, parts in GENERATED.items()}


def with_parts(text: str, page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """`text` with each part between `<!-- generated: NAME -->` and `<!-- end of NAME -->` replaced.

    Raises:
        ValueError: a mark is missing, or a mark names an unknown part.
    """
    marked = re.findall(r"<!-- generated: (.+?) -->", text)
    if sorted(marked) != sorted(parts):
        raise ValueError(f"{page} marks the generated parts {marked}, expected {list(parts)}")
    for name, make in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no {end!r} after {begin!r}")
        text = f"{before}{begin}\n\n{make().strip()}\n\n{end}{after}"
    return text
