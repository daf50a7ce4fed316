"""A report in Markdown as one HTML file with its pictures inside. It loads nothing from elsewhere and has no scripts.

The contents stand at the side; on a narrow screen they are one line at the top that scrolls sideways.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
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
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 90rem; margin: 0 auto; }}
main {{ padding: 0 1rem 4rem; min-width: 0; }}
h1, h2, h3 {{ line-height: 1.2; margin: 1.5rem 0 0.7rem; }}
h2 {{ border-top: 1px solid #ccc; padding-top: 1.5rem; scroll-margin-top: 2.5rem; }}
img {{ max-width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; margin: 0.5rem 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: 0.3rem 0.7rem; text-align: left; vertical-align: top; }}
th {{ background: #f3f3f3; }}
td:first-child, th:first-child {{ position: sticky; left: 0; background: #f3f3f3; }}
code {{ background: #f3f3f3; padding: 0 0.2em; overflow-wrap: anywhere; }}
th code, td:first-child code {{ white-space: nowrap; }}
nav {{ font-size: 0.85rem; background: #fafafa; }}
nav a {{ color: #0b4f8a; text-decoration: none; padding: 0.25rem 0.6rem; }}
nav a:hover, nav a:focus {{ text-decoration: underline; }}
@media (min-width: 62rem) {{
  body {{ display: grid; grid-template-columns: 15rem minmax(0, 1fr); }}
  nav {{ position: sticky; top: 0; height: 100vh; box-sizing: border-box; overflow-y: auto; padding: 1.5rem 0; }}
  nav a {{ display: block; }}
}}
@media (max-width: 62rem) {{
  nav {{ position: sticky; top: 0; z-index: 1; overflow-x: auto; white-space: nowrap; padding: 0.4rem 0;
    border-bottom: 1px solid #ccc; }}
  h1 {{ font-size: 1.4rem; }}
  h2 ~ .wide img {{ max-width: none; }}
  table {{ width: max-content; }}
  td {{ max-width: 18rem; }}
}}
</style>
</head>
<body>
<nav aria-label="Contents">
{contents}</nav>
<main>
{body}</main>
</body>
</html>
"""


def page(text: str, title: str, pictures: Path) -> str:
    """The whole file, with contents beside the text. HTML in the text is shown, not obeyed.

    Args:
        pictures: the folder of the PNG files that the text names.

    Raises:
        OSError: one of them cannot be read.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    contents = "".join(f'<a href="#{anchor}">{escape(heading)}</a>\n' for anchor, heading in _anchored(tokens))
    for image in (child for token in tokens for child in token.children or () if child.type == "image"):
        data = base64.b64encode((pictures / str(image.attrs["src"])).read_bytes()).decode("ascii")
        image.attrs["src"] = f"data:image/png;base64,{data}"
    body = parser.renderer.render(list(_scrolling(tokens)), parser.options, {})
    return PAGE.format(title=escape(title), contents=contents, body=body)


def _anchored(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Give every heading of the first two levels an anchor; yields anchor and heading, the title as "Summary"."""
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open" or opening.tag not in ("h1", "h2"):
            continue
        heading = "".join(child.content for child in inline.children or ())
        anchor = "-".join(re.findall(r"[a-z0-9]+", heading.lower()))
        opening.attrs["id"] = anchor
        yield anchor, "Summary" if opening.tag == "h1" else heading


def _scrolling(tokens: Sequence[Token]) -> Iterator[Token]:
    """Tables and pictures wider than the screen scroll by themselves, not the page."""
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "paragraph_open" and after and [one.type for one in after.children or ()] == ["image"]:
            token.attrs["class"] = "wide"
        if token.type == "table_open":
            yield Token("wide_open", "div", 1, attrs={"class": "wide"}, block=True)
        yield token
        if token.type == "table_close":
            yield Token("wide_close", "div", -1, block=True)
