"""What the site makes of a page of the repository; a link of the built site that leads nowhere is noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.generate.dead_links import dead_links
from docs.generate.hook import on_page_markdown


def in_site(markdown: str, page: str) -> str:
    unused: Any = None
    return on_page_markdown(markdown, SimpleNamespace(file=SimpleNamespace(src_uri=page)), unused, unused)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("results.md", "[a](../benchmarks/results/agent.md#bars)", "[a](benchmarks/results/agent.md#bars)"),
        ("results.md", "![a](../benchmarks/results/agent.png)", "![a](benchmarks/results/agent.png)"),
        ("results.md", "[a](data.md)", "[a](data.md)"),
        ("results.md", "[how](../benchmarks/suite/intervals.py)", "how (`benchmarks/suite/intervals.py`)"),
        ("benchmarks/results/agent.md", "[a](../../docs/method.md#tiles)", "[a](../../method.md#tiles)"),
        ("benchmarks/results/history/proof.md", "[a](../agent.md)", "[a](../agent.md)"),
        ("benchmarks/results/history/proof.md", "[`times.py`](../../../dynamix_ps/times.py)", "`dynamix_ps/times.py`"),
    ],
)
def test_a_link_leads_to_where_the_site_has_its_target(page: str, link: str, there: str) -> None:
    assert in_site(link, page) == there


def test_sections_between_the_marks_become_tabs() -> None:
    text = "<!-- tabs -->\n\n### pip\n\none\n\n### From source\n\n- two\n\n<!-- end of tabs -->\n\n## Next\n"
    lines = [line for line in in_site(text, "install.md").splitlines() if line]
    assert lines == ['=== "pip"', "    one", '=== "From source"', "    - two", "## Next"]


def test_links_to_files_and_anchors_that_are_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "picture 1.png").touch()
    (tmp_path / "index.html").write_text('<h2 id="here">Here</h2> <a href="studies/">Studies</a> <a href="#gone">')
    (tmp_path / "studies" / "index.html").write_text(
        '<a href="../index.html#here"><a href="/index.html"><a href="https://example.org/x"><a href="#">'
        '<img src="../picture%201.png"><img src="picture.png"><a href="../index.html#there"><a href="/none.html">'
    )
    assert [dead.split(" leads")[0] for dead in dead_links(tmp_path)] == [
        "index.html: #gone",
        "studies/index.html: picture.png",
        "studies/index.html: ../index.html#there",
        "studies/index.html: /none.html",
    ]
