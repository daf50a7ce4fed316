"""The study of the agent: its clusters, its cells, its answers, its page. No training runs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies.agent import page as agent_page
from benchmarks.studies.agent import worth as agent
from benchmarks.studies.agent.answers import LEAST_PAIRS, MET, MISSED, OPEN, Runs, verdict
from benchmarks.studies.agent.cells import (
    BEST_STATIC,
    COSTS_S,
    NOISE_SCALES,
    QUESTIONS,
    QUICK_WORKLOADS,
    STATICS,
    WORKLOADS,
    Bar,
    Question,
    cells,
    core_seconds,
)
from benchmarks.studies.agent.clusters import NOISE_SCALE, cluster_for
from benchmarks.studies.agent.sizes import FIXED_SIZES, FURTHER, further_sizes, next_size
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, row_of
from dynamix_ps.config.rules import findings
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.rehearsal.outcome import Evaluated, EvaluationTarget, RehearsalOutcome
from dynamix_ps.sim.cluster.cost import compute_s
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

HOURS, QUICK_MINUTES = 6, 25  # two at a time
TARGETS = {"text": [EvaluationTarget("loss", value, False) for value in (0.8, 0.5)]}


def outcome(samples_per_s: float, luck: float = 1.0, least: float = 0.1, diverged: bool = False) -> RehearsalOutcome:
    """The loss falls from 1 in 20 steps of 100 samples, `luck` times as fast, to `least` at best."""
    losses = {step: max(1 - 0.05 * step * luck, least) for step in range(1, 21)}
    curve = tuple(
        Evaluated(100 * step / samples_per_s, 100 * step, {"loss": loss, "averaged_loss": loss / 2})
        for step, loss in losses.items()
    )
    return RehearsalOutcome(curve[-1].time_s, 100, 3, 1, diverged, curve, {"loss": False})


def runs(contenders: dict[str, list[RehearsalOutcome]], scenario: str = "any") -> Runs:
    """With seeds 0, 1, ..."""
    named = {
        Name("text", scenario, contender, seed): one
        for contender, each in contenders.items()
        for seed, one in enumerate(each)
    }
    return Runs(named, TARGETS)


def ask(contender: str, reference: str, **more: Any) -> Question:
    return Question("part", contender, reference, ("any",), seeds=2, **more)


LUCK = [1.0, 1.2, 0.9, 1.1]


def test_a_cluster_for_small_batches_is_the_same_relative_to_the_noise_scale() -> None:
    """Batches a quarter as large take as long as before, tiles and cliffs included."""
    for name in ("tile-steps", "cliffs", "h-level-8"):
        scenario = load_scenario(name)
        small = cluster_for(scenario, NOISE_SCALE / 4, window=scenario.window)
        sizes = np.array([[64, 100, 256, 400, 500, 600, 700, 800]], dtype=np.float32)
        times = [
            compute_s(parameters, Conditions(parameters, np.random.default_rng(0)), batch)
            for parameters, batch in ((parameters_of([scenario]), sizes), (parameters_of([small]), sizes / 4))
        ]
        assert times[1] == pytest.approx(times[0], rel=1e-5), name


def test_changes_of_a_cluster_come_in_as_many_windows_as_before() -> None:
    scenario = load_scenario("recurring")
    short = cluster_for(scenario, NOISE_SCALE, window=scenario.window // 2)
    for before, after in zip(scenario.trace, short.trace, strict=True):
        assert after.every_s == before.every_s / 2 and after.until_s == before.until_s / 2  # type: ignore[operator]
    hot = cluster_for(load_scenario("heat"), NOISE_SCALE, window=10)
    assert [worker.heat.time_constant_s for worker in hot.workers if worker.heat] == [14.0, 14.0, 60.0]
    assert "model_bytes" in short.model_fields_set


def test_every_cell_is_there_once_and_can_be_made(tmp_path: Path) -> None:
    every = cells(False, tmp_path / "one")
    names = [cell.name for cell in every]
    assert len(set(names)) == len(names)
    needed = Counter[tuple[str, str]]()
    for question in QUESTIONS:
        for scenario in question.scenarios:
            needed |= Counter({(scenario, one): question.seeds * len(WORKLOADS) for one in question.contenders})
    found = Counter((name.scenario, name.contender) for name in names)
    assert found.keys() == needed.keys() and found >= needed
    for cell in {cell.name.contender: cell for cell in every}.values():
        assert not list(findings(cell.config))
        make_policy(cell.config, len(cell.config.cluster.workers), np.random.default_rng(0))
        assert cell.scenario.n_workers == len(cell.config.cluster.workers)
    again = cells(False, tmp_path / "two")
    assert [cell.key for cell in again] == [cell.key for cell in every]


def test_no_two_clusters_share_a_seed(tmp_path: Path) -> None:
    seeds: dict[str, set[int]] = {}
    for cell in cells(False, tmp_path):
        seeds.setdefault(cell.name.scenario, set()).add(cell.name.seed)
    assert sum(map(len, seeds.values())) == len(set.union(*seeds.values()))


def test_every_bar_gets_the_pairs_of_a_verdict() -> None:
    for question in QUESTIONS:
        pairs = question.seeds * len(question.scenarios) * len(WORKLOADS)
        assert question.seeds >= 2 and (question.bar is None or pairs >= LEAST_PAIRS), question


def test_what_is_quick_is_a_part_of_the_whole_and_answers_the_first_question_first(tmp_path: Path) -> None:
    every, quick = ({cell.name: cell.key for cell in cells(one, tmp_path)} for one in (False, True))
    assert quick.items() <= every.items()
    assert {name.workload for name in quick} == set(QUICK_WORKLOADS)
    first = [
        name for name in quick if name.scenario in QUESTIONS[0].quick and name.contender in QUESTIONS[0].contenders
    ]
    assert list(quick)[: len(first)] == first
    assert [name.seed for name in first] == sorted(name.seed for name in first)


def test_the_study_keeps_its_budget(tmp_path: Path) -> None:
    seconds, quick_seconds = (
        core_seconds([cell.name for cell in cells(one, tmp_path)], {}) / 2 for one in (False, True)
    )
    assert seconds <= HOURS * 3600 and quick_seconds <= QUICK_MINUTES * 60
    name = cells(True, tmp_path)[0].name
    slow = {name._replace(seed=seed): {"took_s": str(took_s)} for seed, took_s in enumerate((90, 100, 900))}
    assert core_seconds([name] * 2, slow) == 200
    assert COSTS_S.keys() == NOISE_SCALES.keys() == WORKLOADS.keys()


def test_fixed_sizes_leave_the_first_sizes_as_they_are(tmp_path: Path) -> None:
    found = {cell.name.contender: cell.config for cell in cells(False, tmp_path) if cell.name.workload == "fashion-cnn"}
    tuned = found["ppo"].initial_sizes()[0]
    assert found["static-double"].policy.sizes == (2 * tuned,) * 8
    assert found["static-double"].initial_sizes() == (tuned,) * 8
    for cell in cells(False, tmp_path):
        low, high = cell.config.batch.min, cell.config.batch.max
        assert all(low <= size <= high for size in cell.config.initial_sizes()), cell.name


def test_a_ratio_has_two_parts_and_pairs_take_the_luck_out() -> None:
    found = runs({"fast": [outcome(200.0, luck) for luck in LUCK], "slow": [outcome(150.0, luck) for luck in LUCK]})
    answer = found.answer(ask("fast", "slow"), ("text",))
    assert answer.ratio is not None and answer.samples is not None and answer.clock is not None
    assert (answer.ratio.value, answer.ratio.high) == pytest.approx((0.75, 0.75))
    assert (answer.samples, answer.clock.value) == (Estimate(1.0, 1.0, 1.0), pytest.approx(0.75))
    assert (answer.pairs, answer.alike, answer.misses) == (4, 4, 0)
    assert answer.shown == pytest.approx(0.0, abs=1e-9)


def test_parts_multiply_to_the_ratio_where_learning_differs() -> None:
    found = runs({"a": [outcome(200.0, 1.1 * luck) for luck in LUCK], "b": [outcome(150.0, luck) for luck in LUCK]})
    answer = found.answer(ask("a", "b"), ("text",))
    assert answer.ratio is not None and answer.samples is not None and answer.clock is not None
    assert answer.samples.value < 0.97 and answer.alike == 0
    assert answer.ratio.value == pytest.approx(answer.samples.value * answer.clock.value)


def test_who_misses_a_target_never_looks_faster_and_has_no_parts() -> None:
    dead = [outcome(1000.0, least=0.6) for _ in LUCK]
    found = runs({"dead": dead, "slow": [outcome(150.0, luck) for luck in LUCK]})
    answer = found.answer(ask("dead", "slow", bar=Bar(5.0)), ("text",))
    assert answer.misses == 4 and answer.samples is None and answer.clock is None
    late = runs({"dead": dead, "slow": [outcome(150.0, luck) for luck in LUCK]})
    times_s = [one.log_s(Name("text", "any", "dead", 0))[-1] for one in (found, late)]
    slowest_s = max(math.exp(found.log_s(Name("text", "any", "slow", seed))[-1]) for seed in range(4))
    assert math.exp(times_s[0]) == pytest.approx(slowest_s)


def test_the_best_fixed_size_is_that_of_the_seeds_that_all_have() -> None:
    speeds = dict(zip(STATICS, (100.0, 150.0, 180.0), strict=True))
    found = {name: [outcome(speed, luck) for luck in LUCK] for name, speed in speeds.items()}
    found["static"].append(outcome(9000.0))
    study = runs(found | {"ppo": [outcome(200.0, luck) for luck in LUCK]})
    assert study.best_static("text", "any") == "static-double"
    answer = study.answer(ask("ppo", BEST_STATIC), ("text",))
    assert answer.ratio is not None and answer.ratio.value == pytest.approx(180 / 200)
    assert study.answer(ask("ppo", BEST_STATIC), ("other",)).ratio is None


def sizes_in(times_s: dict[float, float], seeds: int = 2) -> dict[str, list[RehearsalOutcome]]:
    """Runs with fixed sizes, each of which takes so many seconds for all of its samples."""
    names = {factor: name for name, factor in FIXED_SIZES.items()}
    return {names[factor]: [outcome(2000 / time_s)] * seeds for factor, time_s in times_s.items()}


def runs_in_study(times_s: dict[float, float], seeds: Sequence[int]) -> Runs:
    """Of one workload on one cluster of the study, with its seeds."""
    named = {
        Name("text-gpt", "h-level-10", name, seed): one
        for name, each in sizes_in(times_s, len(seeds)).items()
        for seed, one in zip(seeds, each, strict=True)
    }
    return Runs(named, {"text-gpt": TARGETS["text"]}, further=tuple(FURTHER))


def test_fixed_sizes_are_tried_until_the_best_lies_inside(tmp_path: Path) -> None:
    asked = cells(False, tmp_path)
    seeds = [one.name.seed for one in asked if one.name[:3] == ("text-gpt", "h-level-10", "static")]
    steps = (
        ({0.5: 20.0, 1.0: 10.0, 2.0: 15.0}, []),
        ({0.5: 10.0, 1.0: 12.0, 2.0: 15.0}, [0.25]),
        ({0.25: 9.0, 0.5: 10.0, 1.0: 12.0, 2.0: 15.0}, [0.25, 0.125]),
        ({0.125: 9.5, 0.25: 9.0, 0.5: 10.0, 1.0: 12.0, 2.0: 15.0}, [0.25, 0.125]),
        ({0.5: 20.0, 1.0: 18.0, 2.0: 15.0}, [4.0]),
    )
    for times_s, added in steps:
        found = further_sizes(asked, runs_in_study(times_s, seeds))
        expected = [(factor, seed) for factor in added for seed in seeds]
        assert [(FIXED_SIZES[one.name.contender], one.name.seed) for one in found] == expected, times_s
        assert all(one.config.policy.sizes == (round(8 * FIXED_SIZES[one.name.contender]),) * 8 for one in found)


def test_a_further_size_counts_once_all_of_its_seeds_have_run(tmp_path: Path) -> None:
    whole = sizes_in({0.25: 5.0, 0.5: 10.0, 1.0: 12.0, 2.0: 15.0})
    for seeds, best in ((2, "static-x0.25"), (1, "static-half")):
        some = whole | {"static-x0.25": whole["static-x0.25"][:seeds]}
        named = {Name("text", "any", name, seed): one for name, each in some.items() for seed, one in enumerate(each)}
        assert Runs(named, TARGETS, further=tuple(FURTHER)).best_static("text", "any") == best


def test_no_size_beyond_the_bounds_of_a_workload_is_tried() -> None:
    """A quarter of 12 samples is the least that a worker of that workload may have."""
    times_s = {"static-x0.25": 1.0, "static-half": 2.0, "static": 3.0}
    assert next_size("cifar-vgg11", times_s) is None
    assert next_size("cifar-vgg11", {name: times_s[name] for name in list(times_s)[1:]}) == "static-x0.25"


def test_sizes_by_hand_are_in_proportion_to_the_speeds_and_set_once(tmp_path: Path) -> None:
    for cell in cells(False, tmp_path):
        if cell.name.contender == "by-hand":
            sizes, workload = cell.config.initial_sizes(), WORKLOADS[cell.name.workload]
            speeds = np.array([1 / one.per_sample_s for one in cell.scenario.each_worker])
            assert sum(sizes) == 8 * workload.batch, "the rate is tuned for this sum"
            wanted = sum(sizes) * speeds / speeds.sum()
            free = wanted >= workload.min
            assert (np.array(sizes)[~free] == workload.min).all() and np.ptp(np.array(sizes)[free] - wanted[free]) < 3
            assert cell.config.policy.name == "static" and cell.config.policy.sizes is None


@pytest.mark.parametrize(
    ("bar", "estimate", "expected"),
    [
        (Bar(1.03), (1.00, 0.98, 1.02), MET),
        (Bar(1.03), (1.02, 1.00, 1.04), OPEN),
        (Bar(1.03), (1.06, 1.04, 1.08), MISSED),
        (Bar(0.95, clearly=True), (0.94, 0.90, 0.98), MET),
        (Bar(0.95, clearly=True), (0.94, 0.87, 1.01), OPEN),
        (Bar(0.95, clearly=True), (0.97, 0.94, 0.99), OPEN),
        (Bar(0.95, clearly=True), (0.98, 0.96, 0.99), MISSED),
    ],
)
def test_verdicts(bar: Bar, estimate: tuple[float, float, float], expected: str) -> None:
    assert verdict(bar, Estimate(*estimate), 40) == expected
    assert verdict(bar, Estimate(*estimate), 19) == OPEN
    assert verdict(bar, None, 40) == OPEN


def few_cells(quick: bool, folder: Path) -> list[Cell]:
    """Two seeds of what the first question is about, of one workload, and one more."""
    found = cells(quick, folder)
    wanted = [c for c in found if c.name[:2] == ("fashion-cnn", "h-level-4") and c.name.contender in ("ppo", "model")]
    return wanted[:4]


def made_up(cell: Cell) -> RehearsalOutcome:
    speed = 220.0 if cell.name.contender == "ppo" else 200.0
    return outcome(speed, 1 + 0.1 * (cell.name.seed % 3))


def test_the_page_and_the_answers_come_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_missing(missing: list[Cell], table: Table, jobs: int, limit_s: float, tell: Any) -> int:
        few = missing[: int(limit_s)]
        for cell in few:
            table.add(row_of(cell, made_up(cell), took_s=12.0))
        return len(missing) - len(few)

    page = Path(__file__).parents[4] / "benchmarks" / "results" / "agent.md"
    (tmp_path / "agent.md").write_text(page.read_text())
    monkeypatch.setattr(agent, "cells", few_cells)
    monkeypatch.setattr(agent, "run_missing", run_missing)
    stray = cells(False, tmp_path)[0]
    Table(tmp_path / "agent" / "cells.csv").add(
        row_of(dataclasses.replace(stray, name=stray.name._replace(seed=77)), made_up(stray), 1.0)
    )
    file = tmp_path / "answers.json"
    command = ["--out", str(tmp_path), "--json", str(file)]
    assert agent.main([*command, "--plan"]) == 0
    assert "4 of 4 runs are left" in capsys.readouterr().err and not file.exists()
    assert agent.main([*command, "--limit-s", "3"]) == 0
    told = capsys.readouterr().err
    assert "1 runs are left" in told
    text = (tmp_path / "agent.md").read_text()
    assert "1 rows of the table are of no cell of this study" in told
    assert "3 of 4 cells" in text and "The study is not complete" in text and "| ppo / model |" in text
    answers = json.loads(file.read_text())["answers"]
    assert answers[0]["question"] == "ppo / model" and answers[0]["pairs"] == 1
    assert answers[0]["ratio"] is None and answers[0]["verdict"] == OPEN
    assert "agent.png" not in text
    assert agent.main([*command, "--limit-s", "4"]) == 0
    assert json.loads(file.read_text())["answers"][0]["ratio"]["value"] == pytest.approx(200 / 220, rel=1e-3)
    assert "(agent.png)" in (tmp_path / "agent.md").read_text() and (tmp_path / "agent.png").exists()


def test_a_cluster_that_ships_fits_every_workload() -> None:
    for question in QUESTIONS:
        for scenario in question.scenarios:
            for name, workload in WORKLOADS.items():
                cluster = cluster_for(load_scenario(scenario), NOISE_SCALES[name], workload.window)
                assert Scenario.model_validate(cluster.model_dump(exclude_unset=True)).n_workers == 8


def test_no_two_lines_of_the_picture_have_the_same_name() -> None:
    names = [agent_page.name_in_picture(question) for question in QUESTIONS]
    assert len(set(names)) == len(names)
