"""What the site needs beyond docs/: pages of evidence, links to them, tabs, checks. mkdocs calls these functions.

A page is read in two places: in a viewer of the repository, and in the site. The site has docs/ as its root, and in it
`benchmarks/results/` under its own path. Links between the two are led there; a link to another file of the repository
becomes its text and the path.
"""

from __future__ import annotations

import posixpath
import re
import sys
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # mkdocs loads this file by its path

from docs.generate.checks import problems
from docs.generate.dead_links import dead_links

log = get_plugin_logger("docs.generate")  # in a strict build, a warning is an error

EVIDENCE = "benchmarks/results/"
_BESIDE = re.compile(r"\]\(([\w-][\w./-]*\.(?:png|json))\)")  # what a page of evidence shows or links to, besides pages
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")
_TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- end of tabs -->", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of evidence, and the files beside them."""
    root = Path(config.docs_dir).parent
    for page in sorted((root / EVIDENCE).rglob("*.md")):
        for path in (page, *(page.parent / name for name in set(_BESIDE.findall(page.read_text(encoding="utf-8"))))):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn of what is not true, and lead links to where the site has their targets."""
    here = page.file.src_uri
    for problem in () if here.startswith(EVIDENCE) else problems(markdown):
        log.warning(f"{here}: {problem}")
    markdown = _LINK.sub(lambda link: _led(link, here), markdown)
    return _TABS.sub(lambda found: _tabs(found[1]), markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of every link within the site that leads nowhere."""
    for dead in dead_links(Path(config.site_dir)):
        log.warning(dead)


def _led(link: re.Match[str], here: str) -> str:
    """A link of the page `here`, as the site has it; if its target is not in the site, the text and the path."""
    text, target, fragment = link.groups(default="")
    in_repository = here if here.startswith(EVIDENCE) else f"docs/{here}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), target))
    if path.startswith(("docs/", EVIDENCE)):
        return f"[{text}]({posixpath.relpath(path.removeprefix('docs/'), posixpath.dirname(here) or '.')}{fragment})"
    return f"`{path}`" if text.strip("`").endswith(Path(path).name) else f"{text} (`{path}`)"


def _tabs(markdown: str) -> str:
    """Sections, each with a heading of the third level, as tabs."""
    _, *sections = re.split(r"^### (.+)\n", markdown, flags=re.MULTILINE)
    names, texts = sections[::2], sections[1::2]
    return "\n".join(f'=== "{name}"\n{textwrap.indent(text, "    ")}' for name, text in zip(names, texts, strict=True))
