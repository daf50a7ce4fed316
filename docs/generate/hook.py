"""What the site needs beyond its pages: links out of docs/, and checks. mkdocs calls these functions.

A page is read in two places: in a viewer of the repository, where a link to `../benchmarks/results/agent.md` works, and
in the site, which holds docs/ alone. So in the site such a link becomes its text and the path, and a picture from
outside is copied.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # mkdocs loads this file by its path

from docs.generate.checks import problems

log = get_plugin_logger("docs.generate")  # in a strict build, a warning is an error

_PICTURE = re.compile(r"(!\[[^\]]*\]\()\.\./([^)]+\.png)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")
COPIES = "repository"  # folder of the site with pictures from outside of docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures that pages show from outside of docs/."""
    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for _, picture in _PICTURE.findall(page.content_string):
            target = f"{COPIES}/{picture}"
            if files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, abs_src_path=str(root / picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn of what is not true, and lead links out of docs/ to where the site has them."""
    for problem in problems(markdown):
        log.warning(f"{page.file.src_uri}: {problem}")
    markdown = _PICTURE.sub(rf"\1{COPIES}/\2)", markdown)
    return _LINK.sub(_as_path, markdown)


def _as_path(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    return f"`{path}`" if text.strip("`").endswith(Path(path).name) else f"{text} (`{path}`)"
