"""The study of decisions without a centre: what it counts, its figures, and that it goes on where it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.studies.clusters import stigmergy, stigmergy_page
from benchmarks.studies.kept_rows import run_missing
from benchmarks.studies.trainings import shortened
from dynamix_ps.sim.scenario.load import load_scenario

SEEDS = 3


def watched(*sizes: tuple[int, int], running: int = 99) -> dict[str, float]:
    """A run of one seed with these sizes, which ends after `running` windows; one worker waits half of the time."""
    watch = stigmergy.Watch(1)
    for window, pair in enumerate(sizes, start=1):
        simulator: Any = SimpleNamespace(
            times=SimpleNamespace(wait_s=np.array([[0.5, 0.0]]), iteration_s=np.array([1.0])),
            sizes=np.array([pair]),
            windows=np.array([window]),
        )
        watch(simulator, np.array([window <= running]))
    return next(watch.rows())


def test_waiting_and_moves_are_means_over_windows() -> None:
    seen = watched((100, 100), (110, 100), (110, 100), (110, 100))
    assert seen["waiting"] == 0.25
    assert seen["moved"] == pytest.approx(0.05 / 4)
    assert seen["reversed"] == seen["largest"] == 0


def test_a_change_that_takes_back_the_last_one_is_reversed() -> None:
    assert watched((100, 100), (110, 90), (110, 90), (105, 80))["reversed"] == pytest.approx(1 / 4)


def test_late_moves_count_from_the_tenth_window_on_and_by_more_than_one_sample() -> None:
    early = [(100, 10)] * 10
    assert watched(*early, (150, 10))["largest"] == 0  # decided when the tenth window closed
    assert watched(*early, (100, 10), (104, 10))["largest"] == pytest.approx(0.04)
    assert watched(*early, (100, 10), (101, 11))["largest"] == 0


def test_windows_after_the_target_do_not_count() -> None:
    ended = watched((100, 100), (110, 100), (500, 500), running=2)
    assert ended["moved"] == pytest.approx(0.05 / 2)


def made_rows(question: str, scenario: str, times: dict[str, float], workers: int = 8) -> list[stigmergy_page.Row]:
    """Rows as a file gives them back: the actor takes 100, 101, ... s, the others so many times as long."""
    figures = {"windows": "50", "accuracy": "0.8", "samples_per_s": "9", "fallbacks": "0", "largest": "0.02"}
    return [
        {
            "question": question,
            "scenario": scenario,
            "workers": str(workers),
            "constant": str(scenario.startswith("h-")),
            "policy": policy,
            "seed": str(seed),
            "reached": "True",
            "time_s": str((100 + seed) * factor),
            **figures,
            **dict.fromkeys(stigmergy_page.BEHAVIOUR, "0.25"),
        }
        for policy, factor in times.items()
        for seed in range(SEEDS)
    ]


def test_ratios_are_paired_with_every_rival() -> None:
    rivals = dict(zip(stigmergy_page.RIVALS, (1.0, 0.5, 2.0, 1.6, 4.0), strict=True))
    usual = {stigmergy_page.ACTOR_NAME: 1.0} | rivals
    rows = made_rows("scenarios", "h-level-8", usual) + made_rows("scenarios", "loss-bursts", usual)
    rows += made_rows("sizes", "h-level-8-16", {name: usual[name] for name in stigmergy.AT_STAGES}, workers=16)
    rows += made_rows("sizes", "h-level-2-2", {name: usual[name] for name in stigmergy.AT_STAGES}, workers=2)
    for stage in ("h-level-8-16", "h-level-2-2"):
        rows += made_rows("settings", stage, {"crowding x 0": 0.9}, workers=int(stage.rsplit("-", 1)[1]))
    found = stigmergy_page.figures_of(rows)
    for group in ("all", "constant", "changing", "h-level-8"):
        assert {name: one.value for name, one in found.ratios[group].items()} == pytest.approx(
            {name: 1 / factor for name, factor in rivals.items()}
        )
    assert found.ratios["all"]["ppo"].high - found.ratios["all"]["ppo"].low < 1e-6  # seeds differ, pairs do not
    assert list(found.sizes) == ["h-level-2-2", "h-level-8-16"]
    assert found.settings["crowding x 0"].value == pytest.approx(0.9)
    alone = stigmergy_page.figures_of([row for row in rows if row["question"] == "scenarios"])
    assert "numbers of workers" not in stigmergy_page.blocks(alone)
    text = stigmergy_page.blocks(found)
    assert "| h-level-8 | 101 | 101 | 50 | 202 | 162 | 404 |" in text
    assert "| crowding x 0 | 0.900 [0.900, 0.900] |" in text
    assert "| stigmergy | 0 | 25.0 % | 25.00 % | 25 % | 2.0 % | none; 32 bytes per worker in each sum |" in text


def test_every_number_of_the_rule_is_varied_within_its_range() -> None:
    variants = stigmergy.variants()
    assert {name.split(" x ")[0] for name in variants} == set(stigmergy.NAMES)
    for policy in variants.values():
        stigmergy.StigmergySettings(**policy.options)


def test_a_second_call_runs_what_is_missing(tmp_path: Path) -> None:
    scenario = shortened(load_scenario("h-level-4").with_workers(2)).model_copy(update={"max_windows": 3})
    cells = [
        stigmergy.StudyCell("scenarios", scenario, name, stigmergy.CONTENDERS[name], 2)
        for name in ("first-sizes", "stigmergy", "tuned-static")
    ]
    file = tmp_path / "rows.csv"
    rows, left = run_missing(cells[:2], stigmergy.run, file, 0.0, 1)
    assert (len(rows), left) == (2, 1)
    rows, left = run_missing(cells, stigmergy.run, file, 1e9, 1)
    assert left == 0
    assert [row["policy"] for row in rows] == ["first-sizes"] * 2 + ["stigmergy"] * 2 + ["tuned-static"] * 2
    again, left = run_missing(cells, stigmergy.run, file, 1e9, 1)
    assert [{key: str(value) for key, value in row.items()} for row in rows] == again
    assert stigmergy.of_complete_clusters(cells, again) == again
    assert stigmergy.of_complete_clusters(cells, again[:4]) == [], "not all contenders have run on it"
    other = stigmergy.StudyCell(
        "scenarios", scenario.with_workers(3), "stigmergy", stigmergy.CONTENDERS["stigmergy"], 2
    )
    assert other.key not in {cell.key for cell in cells}
