"""HTML of a page: everything that comes in is text, and is escaped here. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
LONGEST_TEXT = 2000  # characters of one cell or sentence (chosen by us)
MOST_ITEMS = 100  # of a list (chosen by us)


class PageLink(NamedTuple):
    """Text that leads to another page of the same server."""

    words: str
    address: str


def page(title: str, body: Iterable[str], charts: Sequence[dict[str, Any]] = (), live: bool = False) -> str:
    """A self-contained page. Its policy forbids the browser every address, and every script and style but ours.

    Args:
        live: the page fetches itself anew every few seconds, from the server that it comes from.
    """
    style, script = (_HERE / "page.css").read_text("utf-8"), (_HERE / "page.js").read_text("utf-8")
    allowed = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    allowed += "; connect-src 'self'" if live else ""
    data = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{allowed}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main{" data-live" if live else ""}>
{"".join(body)}
</main>
<script type="application/json" id="charts">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def text(value: object) -> str:
    """Any text, escaped; a very long one is cut."""
    words = str(value)
    return escape(words if len(words) <= LONGEST_TEXT else f"{words[:LONGEST_TEXT]} ...")


def link(to: PageLink) -> str:
    return f'<a href="{escape(to.address)}">{text(to.words)}</a>'


def heading(words: str) -> str:
    return f"<h2>{text(words)}</h2>\n"


def paragraphs(words: Iterable[str], kind: str = "") -> str:
    return "".join(f'<p class="{kind}">{text(one)}</p>\n' if kind else f"<p>{text(one)}</p>\n" for one in words)


def bullets(items: Sequence[str], when_empty: str) -> str:
    if not items:
        return paragraphs([when_empty])
    more = [f"{len(items) - MOST_ITEMS:,} more are in summary.md"] if len(items) > MOST_ITEMS else []
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in (*items[:MOST_ITEMS], *more))}</ul>\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str | PageLink]]) -> str:
    """The first column names the row; a table that is too wide scrolls."""
    top = f"<thead><tr>{''.join(f'<th>{text(cell)}</th>' for cell in head)}</tr></thead>" if any(head) else ""
    lines = "".join(
        f"<tr><th>{_cell(first)}</th>{''.join(f'<td>{_cell(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table>{top}<tbody>{lines}</tbody></table></div>\n'


def tile_row(tiles: Iterable[tuple[str, str]]) -> str:
    shown = (f"<div><b>{text(value)}</b><span>{text(meaning)}</span></div>" for value, meaning in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>\n'


def chart_places(charts: Sequence[dict[str, Any]]) -> str:
    """Where page.js draws."""
    places = "".join(f"<figure><figcaption>{text(chart['title'])}</figcaption></figure>" for chart in charts)
    without = paragraphs(["This browser runs no scripts, so the charts are not drawn; plots/ has pictures."])
    return f'<div class="charts">{places}</div>\n<noscript>{without}</noscript>\n'


def details(summary: str, content: str) -> str:
    """Text as it is, behind a click."""
    return f"<details><summary>{text(summary)}</summary><pre>{escape(content)}</pre></details>\n"


def _cell(content: str | PageLink) -> str:
    return link(content) if isinstance(content, PageLink) else text(content)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
