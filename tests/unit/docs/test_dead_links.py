"""A link of the built site that leads nowhere is noticed."""

from __future__ import annotations

from pathlib import Path

from docs.generate.dead_links import dead_links


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
