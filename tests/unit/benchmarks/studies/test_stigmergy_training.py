"""The study of training the actor's numbers: what it searches, and that a later call goes on."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import stigmergy_training as study
from benchmarks.studies.cross_entropy import Array
from benchmarks.studies.kept_rows import Row
from benchmarks.studies.stigmergy import SETTLED, STAGES
from dynamix_ps.policy.stigmergy.settings import CALM, NAMES, StigmergySettings


def test_every_point_of_the_search_is_allowed_and_the_numbers_that_ship_are_one() -> None:
    for settles in (False, True):
        found = study.numbers_at(study.point_of(study.shipped()), settles)
        assert found == pytest.approx(study.shipped(), rel=1e-3)
    for point in (*np.random.default_rng(0).normal(0, 5, (200, len(NAMES))), *(np.full((2, 5), 60.0) * [[1], [-1]])):
        numbers, settling = (study.numbers_at(point, settles) for settles in (False, True))
        StigmergySettings(**numbers)
        StigmergySettings(**settling)
        assert 0 < numbers["dead_band"] < CALM
        assert settling["alarm"] * (1 - settling["calming"]) ** SETTLED <= CALM
        assert settling | {"calming": 0} == numbers | {"calming": 0}


def test_no_cluster_of_the_verdict_is_one_of_the_training() -> None:
    length = study.Length()
    assert not set(length.stages) & set(length.held_out)
    assert not {name for _, name in length.stages} & {name for _, name in length.held_out}


class Told(study.Kept):
    """Clusters on which the time is known: the more the alarm is away from 1, the longer it takes."""

    def __init__(self) -> None:
        self.asked: list[study.StudyCell] = []

    def times_s(self, cells: list[study.StudyCell]) -> Array:  # type: ignore[override]
        self.asked += cells
        return np.array([[100 * seed * (1 + abs(np.log(cell.numbers["alarm"]))) for seed in (1, 2)] for cell in cells])


def test_each_stage_begins_where_the_one_before_has_come_to() -> None:
    told = Told()
    stages = study.train(study.Length(STAGES[:3], generations=5), told, study.FREE)
    means = [cell for cell in told.asked if cell.candidate == "0" and cell.place[1] == 1]
    assert means[0].numbers == pytest.approx(study.shipped(), rel=1e-3)
    assert [cell.numbers for cell in means[1:]] == [stage.numbers for stage in stages[:-1]]
    assert stages[-1].numbers["alarm"] == pytest.approx(1.0, rel=0.15)
    assert stages[0].last < stages[0].first
    assert len({cell.seed for cell in told.asked}) == 15, "every generation has seeds of its own"
    verdict = study.judge(study.Length(), told, study.FREE, stages[-1].numbers)
    assert verdict[study.HELD_OUT].value == pytest.approx(1 / (1 + np.log(2)), rel=0.1)


def test_a_later_call_goes_on_and_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[study.StudyCell] = []

    def run(cell: study.StudyCell) -> list[Row]:
        ran.append(cell)
        row = {"search": cell.search, "part": cell.part, "candidate": cell.candidate, **cell.numbers, "reached": True}
        return [{**row, "seed": seed, "time_s": 100.0 + seed + cell.numbers["alarm"]} for seed in range(cell.seeds)]

    monkeypatch.setattr(study, "run", run)
    words = ["--quick", "--jobs", "1", "--out", str(tmp_path)]
    study.main(words)
    whole = len(ran)
    page, file = tmp_path / "stigmergy-training-quick.md", tmp_path / "stigmergy-training-quick.csv"
    text, rows = page.read_text().partition("one core")[2], file.read_text()
    page.unlink()
    with file.open(newline="") as lines:
        cut = list(csv.reader(lines))[:5]  # two of its cells
    file.write_text("".join(",".join(line) + "\n" for line in cut))
    study.main([*words, "--limit-s", "0"])
    assert not page.exists(), "it does not tell of what is not finished"
    study.main(words)
    assert page.read_text().partition("one core")[2] == text
    assert len(ran) < 2 * whole, "what was there did not run again"
    assert len(file.read_text().splitlines()) == len(rows.splitlines())
