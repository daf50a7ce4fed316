"""The study of how far the reward and k may be off: what is changed, on which worlds, and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies.clusters import reward_k, reward_k_page
from benchmarks.studies.clusters.surrogate_worlds import worlds
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.cluster.fitted import FITTED
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import load_scenario


def test_every_variant_is_another_training() -> None:
    chosen = reward_k.variants(1000)
    assert len(set(chosen.values())) == len(chosen)


def test_a_factor_changes_one_weight_alone() -> None:
    chosen = reward_k.variants(1000)
    usual = chosen[reward_k_page.BASE].as_json()
    for weight in reward_k_page.WEIGHTS:
        for factor in reward_k.FACTORS:
            changed = chosen[reward_k_page.variant_name(weight, factor)].as_json()
            assert changed["reward"].pop(weight) == pytest.approx(factor * usual["reward"][weight])
            assert changed == usual | {"reward": {k: v for k, v in usual["reward"].items() if k != weight}}


def test_k_changes_how_often_is_decided_and_not_how_long_training_may_take() -> None:
    scenario = load_scenario("homogeneous")
    for k in (5, 40):
        changed = reward_k.at_k(scenario, k)
        assert changed.window == k
        assert changed.window * changed.max_windows == scenario.window * scenario.max_windows


def test_only_trained_cells_have_settings_and_each_has_its_k() -> None:
    cells = reward_k.cells_of(False)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        assert (cell.settings is None) == (
            cell.variant in (*reward_k.PLAIN, "ppo") or reward_k_page.K_SHIPS in cell.variant
        )
        assert cell.settings is None or cell.settings.window == cell.k
    assert {cell.k for cell in cells if reward_k_page.K_SHIPS in cell.variant} == {5, 10, 40, 80}


def test_fixed_sizes_reach_the_target_of_every_workload_where_it_was_set() -> None:
    """On the constant cluster, after TARGET_PART of LONGER times the iterations that the workload is tuned for."""
    for scenario in worlds():
        workload = scenario.training.workload
        assert workload is not None
        outcome = evaluate(Cell(scenario, PolicySection(name="static"), seeds=2))
        iterations = outcome.windows.mean() * scenario.window
        assert outcome.reached.all(), scenario.name
        assert iterations == pytest.approx(0.6 * 4 * FITTED[workload.name].iterations, rel=0.15), scenario.name


def of(*values: float) -> dict[float, Estimate]:
    return {factor: Estimate(value, value, value) for factor, value in zip((0, 0.25, 0.5, 2, 4), values, strict=True)}


def test_a_weight_may_be_off_until_the_first_factor_that_loses() -> None:
    assert reward_k_page.may_be_off(of(9, 1.0, 1.04, 1.0, 1.0)) == (0.25, 4)
    assert reward_k_page.may_be_off(of(9, 1.0, 1.06, 1.0, 1.2)) == (1, 2)


def test_one_training_that_loses_is_enough() -> None:
    ratios = of(9, 1.0, 1.0, 1.0, 1.0) | {0.5: Estimate(1.0, 0.9, 1.2)}
    assert reward_k_page.may_be_off(ratios) == (1, 4)


def made_rows(variant: str, factors: list[float]) -> list[reward_k_page.Row]:
    """Rows as a file gives them back: 100, 101, ... s times a factor for each training; of one without: none."""
    trained = variant not in ("ppo", "static")
    return [
        {
            "variant": variant,
            "policy": f"{variant} #{number}" if trained else variant,
            "scenario": scenario,
            "seed": str(seed),
            "reached": "True",
            "time_s": str((100 + seed) * factor),
            "windows": "50",
            "accuracy": "0.8",
            "samples_per_s": "9",
            "fallbacks": "0",
        }
        for number, factor in enumerate(factors)
        for scenario in ("cnn-sgd-alone", "gpt-adamw-alone")
        for seed in range(3)
    ]


def test_trainings_are_paired_with_those_of_the_usual_weights() -> None:
    halved = reward_k_page.variant_name("throughput", 0.5)
    shorter = reward_k_page.variant_name(reward_k_page.K_SHIPS, 0.25)
    rows = made_rows(reward_k_page.BASE, [1.0, 2.0]) + made_rows(halved, [1.1, 2.6])
    rows += made_rows("ppo", [1.5]) + made_rows("static", [3.0])
    rows += [row | {"policy": shorter} for row in made_rows(shorter, [0.9])]
    found = reward_k_page.figures_of(rows)
    ratio = found.factors["throughput"][0.5]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.2, 1.1, 1.3))
    assert found.factors[reward_k_page.K_SHIPS][0.25].value == pytest.approx(0.6)
    assert found.others["static"].value == pytest.approx(2.0)
    assert found.others[reward_k_page.BASE].value == pytest.approx(1.0)
    assert list(found.by_workload) == ["cnn-sgd", "gpt-adamw"]
    text = reward_k_page.tables(found)
    assert "| throughput |  | 1.20 (1.10 to 1.30) | 1 to 1 |" in text
    assert "| static | 2.00 (2.00 to 2.00) | 0 % |" in text


@pytest.mark.timeout(120)
def test_the_study_runs_at_toy_size(tmp_path: Path) -> None:
    reward_k.main(["--quick", "--jobs", "1", "--out", str(tmp_path)])
    text = (tmp_path / "reward-k-quick.md").read_text()
    assert "`python -m benchmarks.studies.clusters.reward_k --quick`" in text
    assert "| throughput |" in text
    assert (tmp_path / "reward-k-quick.png").exists()
