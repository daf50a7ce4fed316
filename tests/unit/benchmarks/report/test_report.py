"""The report of a grid: its required content, the same bytes every time, and one HTML file without dependencies."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from benchmarks.report.html import page
from benchmarks.report.report import TITLE, report_text, write_report
from benchmarks.suite.results import CellName, CellResult
from benchmarks.suite.tables import write_tables
from dynamix_ps.errors import UsageError
from tests.unit.benchmarks.suite.made_up_cells import made_up

STATIC_32 = [made_up("static-32", 45, seed=seed) for seed in (1, 2, 3)]
STATIC_64 = [made_up("static-64", 40, seed=seed) for seed in (1, 2, 3)]
OURS = [made_up("ppo", 30, seed=seed) for seed in (1, 2, 3)]
PID = [made_up("pid", 10, seed=1), made_up("pid", 10, seed=2), made_up("pid", 10, seed=3, ended="failed")]
RESULTS = STATIC_32 + STATIC_64 + OURS + PID
GRID = """\
name: mine
seeds: [1, 2, 3]
scenarios: [h-level-4]
workloads: [fashion-cnn]
contenders: [static, pid, ppo, lbb]
static_sizes: [32, 64]
"""


def row(text: str, heading: str, contender: str) -> dict[str, str]:
    """The line of a contender in the first table below a heading."""
    below = text.partition(heading)[2]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in below.splitlines() if line[:1] == "|"]
    values = next(line for line in lines if line[0] == f"`{contender}`")
    return dict(zip(lines[0], values, strict=True))


class TestText:
    def test_our_rivals_and_where_we_lose(self) -> None:
        text = report_text(RESULTS, [])
        static, pid = (row(text, TITLE, name) for name in ("static", "pid"))
        assert (static["t / t_rival"], static["faster"], static["ratio above 1 in"]) == ("0.75", "25 %", "none")
        assert pid["ratio above 1 in"] == "h-level-4 (3.00)"

    def test_a_race_for_bits_per_byte(self) -> None:
        cells = [replace(cell, metric="bpb", thresholds=(0.2, 0.1)) for cell in RESULTS]
        text = report_text(cells, [])
        found = row(text, "\n## h-level-4, fashion-cnn", "ppo")
        assert found["s to 0.1 bits per byte (target)"].startswith("14.")
        assert row(text, "step-time.png", "ppo")["samples to target"].startswith("14,")
        assert "| final bits per byte | above static | bits per byte after 14." in text
        assert "0.1 bits per byte of the test text" in text and "accuracy (%)" not in text

    def test_a_race(self) -> None:
        heading = "\n## h-level-4, fashion-cnn"
        text = report_text(RESULTS, [])
        found = row(text, heading, "ppo")
        assert found["s to 45 %"] == "15.0"
        assert found["s to 90 % (target)"] == "30.0"
        assert found["reached target"] == "3 of 3"
        assert found["faster than static"] == "25 %"
        assert row(text, heading, "pid")["reached target"] == "2 of 2"
        costs = row(text, "h-level-4--fashion-cnn--step-time.png", "ppo")
        assert (costs["global batch"], costs["samples to target"], costs["samples per s"]) == ("100", "30,000", "1,000")
        assert (
            "`static-64` here, the best of the 2 fixed sizes that were tried (32: 45.0 s, 64: 40.0 s; seeds: 3)" in text
        )

    def test_the_fastest_is_bold_also_if_it_is_static(self) -> None:
        assert "| static-64 | **0.75** |" in report_text(OURS + STATIC_64, [])
        slow = [made_up("ppo", 45, seed=seed) for seed in (1, 2, 3)]
        assert "| **static-64** | 1.12 |" in report_text(slow + STATIC_64, [])
        lucky = made_up("lbb", 10, seed=1)
        assert "| static-64 | 0.25 | **0.75** |" in report_text([*OURS, *STATIC_64, lucky], [])

    def test_cells_that_are_not_done_are_named_with_reason(self) -> None:
        text = report_text(RESULTS, [CellName("h-level-4", "fashion-cnn", "lbb", seed) for seed in (1, 3)])
        assert "1 failed, 2 without a result." in text
        reason = "failed: `worker 1 died, and 'that' \\| is why`"
        assert f"| h-level-4, fashion-cnn | {reason} | `pid`: 3 |\n" in text
        assert text.endswith("| h-level-4, fashion-cnn | no result | `lbb`: 1, 3 |\n")
        assert "not done" not in report_text(OURS, [])

    def test_few_seeds_are_a_first_impression(self) -> None:
        assert "first impression" in report_text(OURS[:2], [])
        assert "no ground for conclusions: everybody" in report_text(OURS[:2], [])
        assert "no ground for conclusions: `pid`" in report_text(OURS + PID[:2], [])
        alone = [*OURS, *PID[:2], made_up("ppo", 10, scenario="spot")]
        assert "conclusions: `pid` (h-level-4, fashion-cnn); everybody (spot, fashion-cnn)" in report_text(alone, [])
        assert "first impression" not in report_text(OURS, [])

    def test_what_ran_on_which_machine_where_there_is_more_than_one(self) -> None:
        newer = [replace(made_up(name, 10, scenario="spot"), machine="a newer one") for name in ("ppo", "pid")]
        text = report_text([*OURS, *PID, *newer], [])
        assert "a newer one: spot, fashion-cnn. one of two cores: h-level-4, fashion-cnn." in text
        mixed = [replace(cell, machine="a newer one") for cell in OURS[1:]]
        text = report_text([*OURS[:1], *mixed, *PID], [])
        assert "a newer one and one of two cores: h-level-4, fashion-cnn." in text
        assert "one machine" not in report_text([*OURS, replace(PID[0], machine=None)], [])

    def test_every_scenario_tells_our_time_over_that_of_every_rival(self) -> None:
        elsewhere = [made_up("ppo", 30, scenario="spot"), made_up("pid", 40, scenario="spot")]
        lines = report_text([*OURS, *PID, *STATIC_64, *elsewhere], []).splitlines()
        assert "| scenario | `pid` | `static` |" in lines
        assert "| h-level-4 | 3.00 | 0.75 |" in lines
        assert "| spot | 0.75 | n/a |" in lines
        assert "| **all** | 1.50 | 0.75 |" in lines
        assert "**all**" not in report_text([*OURS, *PID], [])

    def test_how_many_seeds_a_comparison_rests_on(self) -> None:
        elsewhere = [made_up(name, 10, scenario="spot") for name in ("ppo", "pid")]
        assert row(report_text(OURS + PID[:2], []), TITLE, "pid")["seeds"] == "2"
        assert row(report_text(OURS + PID[:2] + elsewhere, []), TITLE, "pid")["seeds"] == "1 to 2"

    def test_tuning_is_stated(self) -> None:
        text = report_text(RESULTS, [])
        assert row(text, "Who takes part", "static")["tuning effort"].endswith("(2 sizes)")

    @pytest.mark.parametrize("cells", [OURS[:1], STATIC_64, PID[2:], [*OURS, made_up("unheard-of", 5)]])
    def test_grids_that_lack_things(self, cells: list[CellResult]) -> None:
        assert "How to read this" in report_text(cells, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    write_tables(folder, RESULTS)
    (folder / "grid.yaml").write_text(GRID)
    write_report(folder)
    return folder


class TestFiles:
    def test_the_same_tables_make_the_same_bytes(self, folder: Path, tmp_path: Path) -> None:
        for file in (*folder.glob("*.csv"), folder / "grid.yaml"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        write_report(tmp_path)
        assert _digests(tmp_path) == _digests(folder)
        assert len(list(folder.glob("*.png"))) == 5

    def test_cells_of_the_grid_that_have_no_result_are_named(self, folder: Path) -> None:
        text = (folder / "report.md").read_text()
        assert "| h-level-4, fashion-cnn | no result | `lbb`: 1, 2, 3 |\n" in text

    def test_every_picture_of_the_text_is_there(self, folder: Path) -> None:
        named = re.findall(r"!\[[^]]*\]\(([^)]*)\)", (folder / "report.md").read_text())
        assert sorted(named) == sorted(file.name for file in folder.glob("*.png"))

    def test_the_page_loads_nothing_from_elsewhere(self, folder: Path) -> None:
        links = _Links()
        links.feed((folder / "report.html").read_text())
        assert [link[:22] for link in links.found if link[0] != "#"] == ["data:image/png;base64,"] * 5
        assert "viewport" in links.metas

    def test_contents_lead_to_every_section(self, folder: Path) -> None:
        links = _Links()
        links.feed((folder / "report.html").read_text())
        sections = 1 + (folder / "report.md").read_text().count("\n## ")
        assert [link for link in links.found if link[0] == "#"] == [f"#{anchor}" for anchor in links.anchors]
        assert len(set(links.anchors)) == sections

    def test_pages_go_elsewhere_on_demand(self, folder: Path, tmp_path: Path) -> None:
        before = _digests(folder)
        assert write_report(folder, tmp_path / "new" / "pages") == tmp_path / "new" / "pages" / "report.html"
        assert _digests(folder) == before
        made = _digests(tmp_path / "new" / "pages")
        assert made == {name: digest for name, digest in before.items() if name in made}
        assert {"report.md", "report.html"} <= set(made)

    def test_a_grid_of_which_every_cell_failed(self, tmp_path: Path) -> None:
        write_tables(tmp_path, [made_up(name, 10, ended="failed") for name in ("ppo", "static-64")])
        assert "0 timed out, 0 diverged, 2 failed, 0 without a result" in write_report(tmp_path).read_text()

    def test_nothing_has_run(self, tmp_path: Path) -> None:
        write_tables(tmp_path, [])
        with pytest.raises(UsageError, match="no cell has a result"):
            write_report(tmp_path)


def test_html_in_a_reason_is_shown_not_obeyed(tmp_path: Path) -> None:
    made = page("a <script>alert(1)</script>\n\n| a |\n| --- |\n| b |\n", "title", tmp_path)
    assert "<script>" not in made and "&lt;script&gt;" in made
    assert '<div class="wide">' in made.partition("<table>")[0] and "</table>\n</div>" in made


class _Links(HTMLParser):
    """Whatever a page would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.metas: list[str] = []
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]
        self.anchors += [value or "" for name, value in attrs if name == "id"]
        self.metas += [value or "" for name, value in attrs if tag == "meta" and name == "name"]


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
