"""Every relative link in every Markdown file of the repository has a target."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs.generate.checks import missing_targets
from docs.generate.pages import ROOT


def _markdown_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    return [path for path in map(ROOT.joinpath, listed) if path.exists()]


@pytest.mark.parametrize("page", _markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not list(missing_targets(page, page.read_text(encoding="utf-8")))
