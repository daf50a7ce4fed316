"""Studies: their pages, what they compute from figures, and one of them at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.report import page
from benchmarks.studies.agent import families
from benchmarks.studies.bed import quota_waiting
from benchmarks.studies.clusters import ceiling
from benchmarks.studies.study import run_study
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.errors import UsageError
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import load_scenario


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    page.update_page(file, "first\n")
    assert file.read_text() == f"# x\n\n{page.BEGIN}\nfirst\n{page.END}\n"
    file.write_text("# By hand\n\n" + file.read_text() + "\nWhat it shows.\n")
    page.update_page(file, "second\n")
    text = file.read_text()
    assert "first" not in text and f"{page.BEGIN}\nsecond\n{page.END}" in text
    assert text.startswith("# By hand\n") and text.endswith("What it shows.\n")


def test_each_block_has_its_marks(tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text(f"{page.BEGIN}\n{page.END}\nBetween.\n{page.BEGIN}\nold\n{page.END}\nAfter.\n")
    page.update_page(file, "first\n", "second\n")
    text = f"{page.BEGIN}\nfirst\n{page.END}\nBetween.\n{page.BEGIN}\nsecond\n{page.END}\nAfter.\n"
    assert file.read_text() == text
    page.update_page(file, None, "other\n")
    text = text.replace("second", "other")
    assert file.read_text() == text
    with pytest.raises(UsageError, match=r"x\.md: has no line .* for table 3 of 3"):
        page.update_page(file, "one\n", "two\n", "three\n")
    assert file.read_text() == text


def test_a_page_with_one_mark_keeps_its_text(tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text(text := f"# x\n\n{page.BEGIN}\nfigures\n\nBy hand.\n")
    with pytest.raises(UsageError, match=r"x\.md: has no line .* with .* after it"):
        page.update_page(file, "new\n")
    assert file.read_text() == text
    with pytest.raises(UsageError, match=r"nowhere/x\.md: No such file .* --out"):
        page.update_page(tmp_path / "nowhere" / "x.md", "new\n")


def test_table() -> None:
    assert page.markdown([{"a": "1", "b": "2"}, {"a": "3", "b": ""}]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 |  |"


@pytest.mark.slow
def test_a_heavier_model_meets_the_same_events_at_the_same_point_of_its_run() -> None:
    """Ten times the computing and bytes on links ten times as fast: everything takes ten times as long."""
    scenario = load_scenario("spot-slowdown")
    heavy = families.heavier(scenario, computing=10, model=10)
    before, after = parameters_of([scenario]), parameters_of([heavy])
    assert after.event_from == pytest.approx(10 * before.event_from)
    assert after.burst_gap_s == pytest.approx(10 * before.burst_gap_s)
    policy = PolicySection(name="proportional")
    times = [evaluate(Cell(one, policy, seeds=2)).time_s.mean() for one in (scenario, heavy)]
    assert times[1] / times[0] == pytest.approx(10, rel=0.1)


@pytest.mark.slow
def test_families_can_be_trained() -> None:
    """Targets are within what their training reaches, and the rivals get there."""
    for name, (scenario,) in families.families(("h-level-8",)).items():
        assert scenario.training.chance < scenario.target_accuracy < scenario.training.best_accuracy
        assert evaluate(Cell(scenario, PolicySection(name="goodput"), seeds=2)).reached.all(), name


def test_workers_with_quotas_wait_for_parts_of_a_period() -> None:
    def waits(cores: tuple[float, ...], period_ms: float, computing_ms: float) -> float:
        of_workers, iteration_ms = quota_waiting.waiting(cores, period_ms, computing_ms, np.random.default_rng(0))
        assert iteration_ms == pytest.approx(computing_ms + quota_waiting.EXCHANGE_MS, rel=0.05)  # hardly any loss
        return float(of_workers.max())

    assert waits((0.9, 0.45, 0.22), 20.0, 70.0) > 0.1
    assert waits((0.9, 0.45, 0.22), 2.0, 70.0) < 0.04
    assert waits((0.9, 0.45, 0.22), 20.0, 700.0) < 0.04
    assert waits((1.0, 1.0), 20.0, 70.0) < 0.04  # whole cores are never held back


@pytest.mark.timeout(60)
def test_a_study_leaves_table_figures_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ceiling", "--quick", "--out", str(tmp_path)])
    run_study("clusters.ceiling", ceiling.__doc__, ceiling.measure)
    assert {file.name for file in tmp_path.iterdir()} == {"ceiling.md", "ceiling.csv", "ceiling.png"}
    text = (tmp_path / "ceiling.md").read_text()
    assert "`python -m benchmarks.studies.clusters.ceiling --quick`" in text
    assert "| homogeneous |" in text
