"""A report in Markdown as one HTML file: pictures inside, nothing loaded from elsewhere, readable on a phone."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 0 auto; padding: 0 1rem 4rem; }}
h1, h2, h3 {{ line-height: 1.2; margin: 2rem 0 0.7rem; }}
h2 {{ border-top: 1px solid #ccc; padding-top: 1.5rem; }}
img {{ max-width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; margin: 0.5rem 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: 0.3rem 0.7rem; text-align: left; vertical-align: top; }}
th {{ background: #f3f3f3; }}
td:first-child, th:first-child {{ position: sticky; left: 0; background: #f3f3f3; }}
code {{ background: #f3f3f3; padding: 0 0.2em; overflow-wrap: anywhere; }}
</style>
</head>
<body>
{body}</body>
</html>
"""


def page(text: str, title: str, pictures: Path) -> str:
    """The whole file. HTML in the text is shown, not obeyed.

    Args:
        pictures: the folder of the PNG files that the text names.

    Raises:
        OSError: one of them cannot be read.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = list(_scrolling(parser.parse(text)))
    for image in (child for token in tokens for child in token.children or () if child.type == "image"):
        data = base64.b64encode((pictures / str(image.attrs["src"])).read_bytes()).decode("ascii")
        image.attrs["src"] = f"data:image/png;base64,{data}"
    return PAGE.format(title=title, body=parser.renderer.render(tokens, parser.options, {}))


def _scrolling(tokens: Sequence[Token]) -> Iterator[Token]:
    """Tables wider than the screen scroll by themselves, not the page."""
    for token in tokens:
        if token.type == "table_open":
            yield Token("wide_open", "div", 1, attrs={"class": "wide"}, block=True)
        yield token
        if token.type == "table_close":
            yield Token("wide_close", "div", -1, block=True)
