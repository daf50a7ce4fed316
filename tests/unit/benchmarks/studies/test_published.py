"""What README and docs/results.md print is what the committed raw tables say, through the code that makes the pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.report.page import RESULTS, update_page
from benchmarks.studies.published import README, RESULTS_PAGE, agent_answers, in_sentences, tables

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_tables_of_both_pages_are_those_of_the_command(tmp_path: Path) -> None:
    found = tables()
    assert list(found) == [README, RESULTS_PAGE]
    for page, blocks in found.items():
        renewed = tmp_path / page.name
        shutil.copy(page, renewed)
        update_page(renewed, *blocks)
        assert renewed.read_text() == page.read_text(), f"{page}: run `python -m benchmarks.studies.published`"


def test_the_figures_in_sentences_are_those_of_the_raw_tables() -> None:
    lines = RESULTS_PAGE.read_text().splitlines()
    for piece, figures in in_sentences().items():
        (line,) = [one for one in lines if piece in one]
        for figure in figures:
            assert figure in line, f"{RESULTS_PAGE}: {figure!r} is not in the line with {piece!r}"


def test_the_table_of_the_agent_has_every_cell_of_its_plan_and_no_other() -> None:
    answers = agent_answers(RESULTS)
    assert answers.missing == 0
    assert answers.outside == 0
