"""The command that makes the pictures of pages: which pages, and what it says where one cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from docs.generate import screenshots
from docs.generate.pages import DOCS
from docs.generate.screenshots import Picture
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.report.run_report import report_run
from tests.browser import Browser
from tests.unit.synthetic_run import config, new_folder, whole_run


def test_without_a_browser_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots, "chromium", lambda: None)
    with pytest.raises(EnvironmentNotReady, match=r"no Chromium is installed.*apt install chromium"):
        screenshots.main([])


def test_without_the_site_it_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"get-started\.html: no such file; build the site: make docs"):
        screenshots.of_the_site(tmp_path)


def test_the_pages_of_the_site_are_pages_of_the_docs(tmp_path: Path) -> None:
    for page in DOCS.glob("*.md"):
        (tmp_path / page.name).with_suffix(".html").touch()
    assert len(screenshots.of_the_site(tmp_path)) == 4


def test_of_runs_it_shows_the_newest_that_has_finished(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of its runs has finished"):
        screenshots.of_runs(tmp_path, "http://x/")
    folder = new_folder(tmp_path)
    folder.write_config(config(3))
    whole_run(folder)
    report_run(folder)
    shown = {picture.name: picture.address for picture in screenshots.of_runs(tmp_path, "http://x/")}
    assert shown == {"ui": "http://x/", "run-page": f"http://x/run/{folder.path.name}"}


@pytest.mark.slow
def test_a_picture_has_the_size_of_its_window(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(screenshots, "DOCS", tmp_path)
    page = tmp_path / "page.html"
    page.write_text("<body style='background: teal'>words")
    picture = Picture("words", f"file://{page}", 390, 600)
    with Image.open(screenshots.take(browser.program, picture)) as taken:
        assert taken.size == (390, 600)
    monkeypatch.setattr(screenshots, "MOST_BYTES", 10)
    with pytest.raises(EnvironmentNotReady, match="at most 10"):
        screenshots.take(browser.program, picture)
