"""The study of many workers: its clusters, what it counts, its figures, and that it runs at toy size."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.studies.clusters import scaling, scaling_page, scaling_rehearsed
from benchmarks.studies.clusters.agent_runs import SHIPPED, networks_in, run_agent
from benchmarks.studies.clusters.unsteady import unsteady
from benchmarks.studies.trainings import shortened
from dynamix_ps.config.schema import PolicySection, Safety
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario

SEEDS = 3


@pytest.mark.parametrize("workers", [8, 64])
def test_links_and_speeds_change_while_training_runs(workers: int) -> None:
    for scenario in unsteady():
        large = scenario.with_workers(workers)
        Scenario.model_validate(large.model_dump())
        simulator = Simulator(parameters_of([large]), np.random.default_rng(0))
        slow, bandwidth = [], []
        for _ in range(400):
            simulator.step(simulator.sizes)
            slow.append(simulator.conditions.slow[0].copy())
            bandwidth.append(simulator.conditions.bandwidth[0].copy())
        assert np.ptp(slow, axis=0).max() > 1, scenario.name
        assert np.ptp(bandwidth, axis=0).max() > 0.5, scenario.name


def test_the_end_is_compared_with_the_best() -> None:
    rewards = np.concatenate([np.full(20, -3.0), np.full(20, -1.0), np.full(20, -2.0)])
    assert scaling.best_and_end(rewards) == pytest.approx((-1.0, -2.0))


def test_what_a_training_was_like() -> None:
    updates = [
        {"reward": reward, "batch/approx_kl": 0.01, "share/approx_kl": kl}
        for reward, kl in ((-2.0, 0.02), (-1.0, 3.0), (-2.0, 0.0))
    ]
    found = scaling.learning_columns(updates)
    assert (found["reward_swing"], found["worst_kl"], found["rewards"]) == ("1", "3", "-2 -1 -2")


def test_an_update_that_was_refused_has_no_finite_kl() -> None:
    assert scaling.largest_kl({"reward": 1.0, "batch/loss": float("nan")}) == float("inf")


def test_the_swing_is_that_of_the_return_until_the_target() -> None:
    """Without a change of size the return swings as the iteration's time does."""
    (scenario, _) = unsteady()
    parameters = parameters_of([scenario])
    watch = scaling.ReturnWatch(1)
    for time_s, running in ((0.1, True), (0.2, True), (0.1, True), (9.9, False)):
        simulator: Any = SimpleNamespace(
            parameters=parameters,
            noise_scale=np.array([200.0]),
            sizes=parameters.initial,
            times=SimpleNamespace(iteration_s=np.array([time_s])),
        )
        watch(simulator, np.array([running]))
    assert watch.swing == pytest.approx([1.0])


def made_rows(workers: int, factors: dict[str, float]) -> list[scaling_page.Row]:
    """Rows as a file gives them back: the model takes 100, 101, ... s, the others so many times as long."""
    rows = []
    for policy, factor in factors.items():
        contender, _, training = policy.partition(" ")
        for scenario in ("alone", "racks"):
            for seed in range(SEEDS):
                first = bool(training) and scenario == "alone" and not seed
                learned = dict.fromkeys(scaling_page.LEARNING, "1.5" if first else "")
                rows.append(
                    {
                        "workers": str(workers),
                        "scenario": scenario,
                        "contender": contender,
                        "policy": policy,
                        "seed": str(seed),
                        "reached": "True",
                        "time_s": str((100 + seed) * factor),
                        "windows": "50",
                        "accuracy": "0.8",
                        "samples_per_s": "9",
                        "fallbacks": "0",
                        "waiting": "0.25",
                        "moved": "0.05",
                        "swing": "0.125",
                        "rewards": "-2 -1" if first else "",
                    }
                    | learned
                )
    return rows


def test_figures_are_paired_with_the_model_and_trainings_have_a_range() -> None:
    factors = {"static": 2.0, "model": 1.0, "ppo": 1.1, "clip 0": 0.9, "clip 1": 1.1, "simple 0": 3.0, "simple 1": 5.0}
    rows = made_rows(64, factors) + made_rows(8, factors)
    found = scaling_page.figures_of(rows)
    assert list(found) == [8, 64]
    times = {name: one.on["racks"].over_model for name, one in found[64].items()}
    assert {name: one.value for name, one in times.items()} == pytest.approx(
        {"static": 2.0, "model": 1.0, "ppo": 1.1, "clip": math.sqrt(0.99), "simple": math.sqrt(15)}
    )
    assert (times["simple"].low, times["simple"].high) == pytest.approx((3.0, 5.0))
    assert times["ppo"].high - times["ppo"].low < 1e-6  # seeds differ, pairs do not
    assert found[8]["clip"].learning["worst_kl"] == [1.5, 1.5]
    assert not found[8]["ppo"].learning
    assert [list(one) for one in scaling_page.curves_of(rows)[64, "clip"]] == [[-2.0, -1.0]] * 2
    text = scaling_page.tables(found)
    row = "64 | 101 | 0.55 | 2.00 | 1.10 | 0.99 (0.90 to 1.10) | 3.87 (3.00 to 5.00) |"
    assert f"| `alone` | {row}" in text and f"| `racks` | {row}" in text
    assert "| 8 | 0.125, 5.0 % |" in text
    assert "| 8 | clip | 1.5 (1.5 to 1.5) |" in text


def test_clusters_stand_in_rows_of_their_own() -> None:
    """Half as fast on one and twice as fast on the other is nowhere told as equal."""
    rows = made_rows(8, {"static": 2.0, "model": 1.0, "ppo": 1.0})
    rows = [
        row | {"time_s": str(0.5 * float(row["time_s"]))}
        if (row["scenario"], row["contender"]) == ("racks", "ppo")
        else row
        for row in rows
    ]
    found = scaling_page.figures_of(rows)
    assert [scaling_page.over_static(found, one) for one in ("alone", "racks")] == ["0.50 to 0.50", "0.25 to 0.25"]


@pytest.mark.slow
def test_both_learners_train_alike_but_for_the_learner() -> None:
    cells = {cell.policy: cell for cell in scaling.cells_of(False) if cell.workers == 64}
    clip, simple = (cells[f"{name} 1"].settings for name in ("clip", "simple"))
    assert clip is not None and simple is not None
    assert (clip.learner.learner, simple.learner.learner) == ("clip", "simple")
    assert {name for name, value in clip.as_json().items() if value != simple.as_json()[name]} == {"learner"}
    assert cells["ppo"].settings is None
    assert len({cell.key for cell in scaling.cells_of(False)}) == len(scaling.cells_of(False))


def test_decisions_are_those_of_the_arbitrators_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the evidence that it needs in a job."""
    monkeypatch.setattr("dynamix_ps.policy.registry.WeighedPolicy", lambda policy, *_, **__: policy)
    scenario = shortened(unsteady()[0])
    (rng,) = np.random.default_rng(5).spawn(1)
    found = run_agent(parameters_of((scenario,) * 2), networks_in(SHIPPED), rng, scenario.max_windows)
    policy = PolicySection(name="ppo", safety=Safety(enabled=False))
    expected = evaluate(Cell(scenario, policy, seeds=2, seed=5))
    assert found.time_s == pytest.approx(expected.time_s, rel=1e-3)
    assert found.samples_per_s == pytest.approx(expected.samples_per_s, rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_study_runs_at_toy_size(tmp_path: Path) -> None:
    scaling.main(["--quick", "--jobs", "1", "--out", str(tmp_path), "--json", str(tmp_path / "figures.json")])
    text = (tmp_path / "scaling-quick.md").read_text()
    assert "`python -m benchmarks.studies.clusters.scaling --quick`" in text
    assert "| 16 | simple |" in text
    assert (tmp_path / "scaling-quick.png").exists() and (tmp_path / "figures.json").exists()


def test_a_rehearsed_cluster_needs_as_long_for_the_global_batch_whatever_its_size() -> None:
    for workers, first in scaling_rehearsed.FIRST_SIZES.items():
        found = scaling_rehearsed.cluster(f"racks-{workers}")
        assert found.n_workers == workers
        per_sample_s = found.each_worker[0].per_sample_s
        assert per_sample_s / workers == pytest.approx(
            scaling_rehearsed.cluster("racks-64").workers[0].per_sample_s / 64
        )
        workload = scaling_rehearsed.workload_of(workers)
        assert workload.batch == first
        assert workload.lr["sgd"] == pytest.approx(0.045 * (workers * first / 192) ** 0.5)


def test_rehearsed_contenders_share_their_seeds(tmp_path: Path) -> None:
    names = [cell.name for cell in scaling_rehearsed.cells(False, tmp_path)]
    assert len(set(names)) == len(names)
    for question in scaling_rehearsed.QUESTIONS:
        for scenario in question.scenarios:
            seeds = {
                contender: {name.seed for name in names if name[1:3] == (scenario, contender)}
                for contender in (scaling_rehearsed.AGENT, scaling_rehearsed.MODEL, *scaling_rehearsed.STATICS)
            }
            assert len({frozenset(one) for one in seeds.values()}) == 1
            assert len(seeds[scaling_rehearsed.AGENT]) == question.seeds
