"""The study of the clock: which clusters are compared, what its figures are, and that it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.clusters import clock
from dynamix_ps.sim.scenario.effects import effects_of
from dynamix_ps.sim.scenario.load import load_scenario

SEEDS = 4


def test_equal_clusters_without_effects_run_once() -> None:
    scenarios = [load_scenario(name) for name in ("recurring", "tile-steps", "heat", "shared-hosts", "all-effects")]
    pairs = clock.pairs_of(scenarios)
    assert [pair.scenario for pair in pairs] == scenarios
    names = [pair.without.name for pair in pairs]
    first, second, third = (f"{name}-without" for name in ("recurring", "tile-steps", "all-effects"))
    assert names == [first, second, first, second, third]
    for pair in pairs:
        assert effects_of(pair.without) == ()
        assert [one.per_sample_s for one in pair.without.each_worker] == [
            one.per_sample_s for one in pair.scenario.each_worker
        ]


def rows_of(scenario: str, factors: dict[str, float]) -> list[clock.Row]:
    """The oracle takes 100, 101, ... s, the others so many times as long, as a file gives it back."""
    return [
        {
            "scenario": scenario,
            "policy": policy,
            "seed": str(seed),
            "reached": "True",
            "time_s": str((100 + seed) * factor),
        }
        | {"windows": "50", "accuracy": "0.8", "samples_per_s": "9", "fallbacks": "0"}
        for policy, factor in factors.items()
        for seed in reversed(range(SEEDS))
    ]


def test_figures_are_paired_with_the_oracle_and_with_the_cluster_without_effects() -> None:
    (pair,) = clock.pairs_of([load_scenario("cliffs")])
    same = dict.fromkeys(clock.CONTENDERS, 1.5)
    rows = rows_of("cliffs", same | {"ppo": 1.2, clock.ORACLE: 1.0})
    rows += rows_of("cliffs-without", same | {"ppo": 1.1, clock.ORACLE: 1.0})
    found = clock.findings([pair], rows)["cliffs"]
    assert found["ppo"].over_oracle.value == pytest.approx(1.2)
    assert found["ppo"].cost.value == pytest.approx(1.2 / 1.1)
    assert found["ppo"].cost.high - found["ppo"].cost.low < 1e-6  # seeds differ, pairs do not
    assert found["goodput"].cost.value == pytest.approx(1.0)
    over, cost = clock.tables([pair], rows, {"cliffs": found})
    assert "| cliffs | cliff | 102 | 2.0 |" in over
    assert "1.091 [1.091, 1.091]" in cost


def test_a_run_that_never_arrives_counts_and_is_told() -> None:
    (pair,) = clock.pairs_of([load_scenario("cliffs")])
    factors = dict.fromkeys((*clock.CONTENDERS, clock.ORACLE), 1.0)
    rows = rows_of("cliffs", factors | {"tuned-static": 3.0}) + rows_of("cliffs-without", factors)
    for row in rows:
        if row["policy"] == "pid" and row["scenario"] == "cliffs":
            row["reached"] = "False"
    found = clock.findings([pair], rows)["cliffs"]
    assert found["pid"].missed == SEEDS
    assert found["pid"].over_oracle.value == pytest.approx(np.mean(309 / np.arange(101, 103)), rel=1e-3)
    assert f"{SEEDS} missed" in clock.tables([pair], rows, {"cliffs": found})[0]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    few = ("cliffs", "recurring")
    monkeypatch.setattr(clock, "shipped", lambda: few)
    command = ["--quick", "--jobs", "1", "--out", str(tmp_path)]
    clock.main([*command, "--limit-s", "0"])
    assert "cells are left" in capsys.readouterr().out
    assert not (tmp_path / "clock-quick.md").exists()
    clock.main(command)
    text = (tmp_path / "clock-quick.md").read_text()
    assert "`python -m benchmarks.studies.clusters.clock --quick`: " in text and "\n2 seeds. Time" in text
    assert "| recurring | recurrence |" in text
    assert (tmp_path / "clock-quick.png").exists()
    before = (tmp_path / "clock-quick.csv").read_text()
    assert before.count("\n") == 1 + 2 * (6 * 2 * 2)  # seeds, contenders with the oracle, clusters with and without
    monkeypatch.setattr(clock, "_run", lambda cell: pytest.fail(f"{cell.name} on {cell.scenario.name} runs again"))
    clock.main(command)
    assert (tmp_path / "clock-quick.csv").read_text() == before


def test_a_changed_scenario_runs_again(tmp_path: Path) -> None:
    scenario = load_scenario("cliffs")
    keys = {
        clock._Cell(one, "pid", None, 2).key
        for one in (scenario, scenario.model_copy(update={"jitter": 0.5}), load_scenario("heat"))
    }
    assert len(keys) == 3
    assert clock._Cell(scenario, "pid", None, 2).key in keys
