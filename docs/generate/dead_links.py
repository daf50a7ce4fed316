"""Links of a built site that lead nowhere. Pure but for reading files."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collects where a page links to, and the places in it to which others may link."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value is not None:
                self.anchors.add(value)


def dead_links(site: Path) -> Iterator[str]:
    """A line for each link from a page of the site to a file or an anchor that the site does not have."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for page, read in pages.items():
        for link in dict.fromkeys(read.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = site / path.lstrip("/") if path.startswith("/") else (page.parent / path if path else page)
            target = target.resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{page.relative_to(site)}: {link} leads to no file of the site"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{page.relative_to(site)}: {link} leads to no anchor of that page"
