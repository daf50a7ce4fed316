"""The simulated study of language models: its fit, its worlds, what it counts, and that it runs at toy size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import gpt_simulated
from benchmarks.studies.gpt_cells import AGENT, CLUSTERS, FIRST_SIZE, TARGETS, WORKERS
from benchmarks.studies.gpt_simulated_fit import (
    PARTS,
    SIZES,
    TOKENS,
    accuracy_at,
    course,
    error,
    fit,
    halves,
    mean_losses,
    measured_noise,
    noise_at,
    rehearsed_runs,
    tokens_to,
)
from benchmarks.studies.gpt_simulated_page import CHOOSING
from benchmarks.studies.gpt_simulated_runs import Contest, Course, Run, Who, row_of, run_of, runs_of, static
from benchmarks.studies.gpt_simulated_worlds import FREE, IN_BOUNDS, PAPER, UNITS, World, paper_bounds
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.config.schema import Policy
from dynamix_ps.sim.cluster.cost import compute_s
from dynamix_ps.sim.cluster.parameters import Reals, parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.contest.comparison import Array
from dynamix_ps.sim.contest.evaluate import Cell, evaluate
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Training

TRUE = Training(
    tuning=0.6,
    noise_scale=1500.0,
    noise_growth=0.8,
    progress_scale=15.0,
    decay=0.3,
    first_loss=3.6,
    last_loss=0.7,
    chance=0.0,
    best_accuracy=1.0,
    gap=0.0,
    data_samples=TOKENS,
)


def simulated(batches: list[int], training: Training = TRUE) -> tuple[Array, Array]:
    scenario = Scenario(name="t", lr_rule="adascale", training=training, target_accuracy=0.3)
    return course(parameters_of((scenario,)), np.array(batches, dtype=np.float64))


def test_a_fit_finds_the_training_that_made_the_losses() -> None:
    losses, noises = simulated(list(SIZES))
    curves = dict(zip(SIZES, losses[:PARTS].T, strict=True))
    at = np.array([2, 8, 14])
    noise = dict(zip((at + 1) / PARTS * TOKENS, noises[at, 0], strict=True))
    assert error(fit(curves, noise), curves) < 0.02
    known = {size: curve for size, curve in curves.items() if size != 8192}
    assert error(fit(known, noise), {8192: curves[8192]}) < 0.02
    assert error(TRUE, curves) < 0.01
    assert error(TRUE.model_copy(update={"noise_scale": 3000.0}), curves) > 0.2


def test_the_course_is_that_of_the_simulator() -> None:
    """The same fixed size in both, mean over the luck of windows."""
    world = World(CLUSTERS[0], TRUE)
    watch = Course(world)
    evaluate(Cell(world.scenario(FREE), Policy(name="static", sizes=(256,) * WORKERS), 20, 0), watch)
    expected = tokens_to(simulated([2048])[0][:, 0], [target.value for target in TARGETS])
    reached = np.array([watch.of(seed).tokens for seed in range(20)]).mean(axis=0) / TOKENS
    assert reached == pytest.approx(expected, rel=0.05)


def test_what_was_rehearsed_is_split_and_read() -> None:
    runs = rehearsed_runs()
    seen, unseen = halves(runs)
    assert len(seen) + len(unseen) == len(runs) == 196 and not seen.keys() & unseen.keys()
    for half in (seen, unseen):
        curves = mean_losses(half)
        assert list(curves) == list(SIZES)
        assert all(len(curve) == PARTS for curve in curves.values())
        assert curves[1024][-1] < curves[8192][-1] < curves[131072][-1]
    assert all(1000 < noise < 10_000 for noise in measured_noise().values())


def test_tokens_to_a_loss_are_counted_as_in_the_rehearsals() -> None:
    falling = np.linspace(3, 2, 11)
    assert tokens_to(falling, [2.55]) == pytest.approx([5.5 / PARTS])  # the mean of three is the middle one on a line
    assert math.isnan(tokens_to(falling, [1.9])[0])


def test_accuracy_is_the_part_of_the_loss_that_has_gone_and_noise_grows_with_it() -> None:
    assert accuracy_at(TRUE, 3.6) == 0 and accuracy_at(TRUE, 0.7) == 1
    assert noise_at(TRUE, 3.6) == pytest.approx(1500) and noise_at(TRUE, 2.15) == pytest.approx(1500 * 2**0.8)


def computing_s(world: World, size: int) -> Reals:
    parameters = parameters_of([world.scenario(FREE)])
    conditions = Conditions(parameters, np.random.default_rng(0))
    return compute_s(parameters, conditions, np.full((1, WORKERS), size, dtype=np.float32))


def test_all_that_counts_in_tokens_grows_with_the_noise_scale() -> None:
    """An iteration with as large a batch, over the noise scale, lasts as long and brings the model as far."""
    small, large = World(CLUSTERS[1], TRUE), World(CLUSTERS[1], TRUE, times=64, first=64 * FIRST_SIZE)
    assert computing_s(large, 64 * 100) == pytest.approx(computing_s(small, 100), rel=1e-5)
    runs = []
    for world in (small, large):
        watch = Course(world)
        evaluate(Cell(world.scenario(FREE), Policy(name="static", sizes=(world.first,) * WORKERS), 2, 0), watch)
        runs.append(watch.of(1))
    assert runs[1].time_s == pytest.approx(runs[0].time_s, rel=1e-3)
    assert np.array(runs[1].tokens) == pytest.approx(64 * np.array(runs[0].tokens), rel=1e-3)
    assert runs[1].whole_loss == pytest.approx(runs[0].whole_loss, rel=1e-3)


@pytest.mark.parametrize("unit", UNITS)
def test_a_size_may_count_sequences(unit: int) -> None:
    plain, counted = World(CLUSTERS[0], TRUE, 512), World(CLUSTERS[0], TRUE, 512, unit)
    assert computing_s(counted, 64) == pytest.approx(computing_s(plain, 64 * unit), rel=1e-5)
    bounds = paper_bounds(unit)
    assert (bounds.min, bounds.max) == (CONTEXT if unit == 1 else 32, 1024)
    first = counted.scenario(bounds).initial_batch
    assert first == max(FIRST_SIZE // unit, bounds.min)
    assert counted.scenario(FREE).training.noise_scale == pytest.approx(1500 * 512 / unit)
    simulator, watch = Simulator(parameters_of([counted.scenario(bounds)]), np.random.default_rng(0)), Course(counted)
    simulator.step(simulator.sizes)
    watch(simulator, np.array([True]))
    assert watch.of(0).batch == watch.of(0).largest == WORKERS * first * unit


def test_every_cell_is_there_once_and_each_size_is_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(curves: dict[int, Array], noise: dict[float, float]) -> Training:
        return TRUE.model_copy(update={"noise_scale": float(sum(curves))})

    monkeypatch.setattr(gpt_simulated, "fit", fake)
    cells = gpt_simulated.cells_of(False)
    assert len({cell.key for cell in cells}) == len(cells)
    of_one = [cell for cell in cells if (cell.world.cluster, cell.world.times, cell.left_out) == (CLUSTERS[0], 64, 0)]
    assert [WORKERS * cell.size for cell in of_one if cell.size] == [1 << power for power in range(10, 23)]
    choosing = {(cell.contender, cell.world.unit) for cell in of_one if not cell.size}
    assert choosing == {(one, 1) for one in CHOOSING} | {(one, unit) for one in (PAPER, IN_BOUNDS) for unit in UNITS}
    assert {cell.left_out for cell in cells} == {0, *SIZES}
    for cell in cells:
        assert cell.world.training.noise_scale == sum(SIZES) - cell.left_out
        if cell.left_out:
            assert WORKERS * cell.size in (cell.left_out, 2048)
    for cell in cells[:: len(cells) // 20]:
        Scenario.model_validate(cell.scenario.model_dump())


def run(seconds: float, missed: int = 0) -> Run:
    """Targets after 1, 2 and 3 times as many seconds and a tenth of the tokens; the last ones are missed."""
    known = len(TARGETS) - missed
    times_s = tuple(seconds * (number + 1) if number < known else math.inf for number in range(len(TARGETS)))
    tokens = tuple(0.1 * TOKENS * one / seconds for one in times_s)
    return Run(times_s, tokens, whole_s=8 * seconds, whole_loss=2.0, ran_s=10 * seconds, batch=4096.0, largest=5000.0)


def rows(seconds: dict[Who, float], missed: int = 0) -> list[dict[str, str]]:
    """As a file gives them back; who is called `paper` misses so many targets."""
    return [
        {"cluster": cluster, "seed": str(seed)}
        | {name: str(value) for name, value in who._asdict().items()}
        | row_of(run(time_s * (1 + 0.1 * seed), missed if who.contender == PAPER else 0))
        for who, time_s in seconds.items()
        for cluster in CLUSTERS
        for seed in range(3)
    ]


def test_a_row_gives_the_run_back() -> None:
    for missed in (0, 1):
        assert run_of(row_of(run(3.5, missed))) == run(3.5, missed)


def test_ratios_are_over_the_best_fixed_size_at_the_same_noise_scale() -> None:
    seconds = {static(1024): 20.0, static(2048): 10.0, Who(AGENT): 7.0, static(2048, 8): 30.0, Who(AGENT, 8): 24.0}
    contest = Contest(runs_of(rows(seconds)))
    assert contest.best_static(1, CLUSTERS[0]) == static(2048)
    assert str(contest.over(Who(AGENT))) == "0.70 [0.70, 0.70]"
    assert contest.over(Who(AGENT, 8)).estimate.value == pytest.approx(0.8)
    assert contest.over(Who(AGENT), static(1024)).estimate.value == pytest.approx(0.35)
    assert Contest(runs_of(rows(seconds)), statics=["static-128"]).over(Who(AGENT)).estimate.value == pytest.approx(
        0.35
    )
    assert (contest.batch(Who(AGENT)), contest.largest(Who(AGENT))) == (4096, 5000)


def test_who_misses_a_target_counts_with_its_time_and_as_a_lower_limit() -> None:
    seconds = {static(2048): 10.0, Who(PAPER): 10.0}
    ratio = Contest(runs_of(rows(seconds, missed=1))).over(Who(PAPER))
    assert ratio.misses and str(ratio).startswith("at least")
    assert ratio.estimate.value == pytest.approx((100 / 30) ** (1 / 3), rel=1e-3)


def test_within_a_whole_training_later_targets_do_not_count() -> None:
    found = runs_of(rows({static(2048): 10.0, Who(AGENT): 10.0}))
    late = {
        key: [
            Run(one.time_s, (1.0, 2.0, 1.1 * TOKENS), one.whole_s, 2.0, one.ran_s, 1.0, 1.0)
            if key[0].contender == AGENT
            else one
            for one in runs
        ]
        for key, runs in found.items()
    }
    assert not Contest(late).misses(Who(AGENT))
    ratio = Contest(late, whole=True).over(Who(AGENT))
    assert ratio.misses and ratio.estimate.value == pytest.approx((80 / 30) ** (1 / 3), rel=1e-3)


def test_it_runs_at_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    gpt_simulated.main(["--quick", "--out", str(tmp_path), "--jobs", "1", "--json", str(file)])
    page = (tmp_path / "gpt-simulated-quick.md").read_text()
    assert "Simulated." in page and "| `ppo` |" in page and "paper, tokens / best static" in page
    assert (tmp_path / "gpt-simulated-quick.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(file.read_text())
    assert set(told["over_best_static"]) == {"x1", "x8"}
    assert 0.5 < told["over_best_static"]["x1"][AGENT]["estimate"]["value"] < 1
