"""`python -m docs.generate [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from docs.generate.pages import DOCS, current, updated


def main(arguments: Sequence[str]) -> int:
    """Write the generated parts of all pages, or with `--check` name the pages that are out of date (exit code 1)."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    stale = [page for page, text in updated().items() if text != current(page)]
    if arguments:
        for page in stale:
            print(f"error: docs/{page} is out of date; run `python -m docs.generate`", file=sys.stderr)
        return 1 if stale else 0
    for page, text in updated().items():
        if page in stale:
            (DOCS / page).write_text(text, encoding="utf-8")
            print(f"docs/{page}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
