"""The check of the clock: what counts of a run, which cluster a rehearsal has, and when both agree."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.studies.bed.clock import (
    FULL,
    OTHER_SIZE,
    QUICK,
    REFERENCE,
    Check,
    measure,
    rehearsals,
    write_page,
)
from benchmarks.studies.bed.clock_answers import BEYOND, OPEN, WITHIN, Span, agreements
from benchmarks.studies.bed.clock_cell import MODEL, WORKLOAD, contender_of, workload_of
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.results import CellName, CellResult, CurvePoint, PlanPoint, WorkerTimes
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.simulated import iteration_s
from benchmarks.suite.tables import write_tables
from tests.unit.benchmarks.suite.made_up_cells import made_up

SPAN = Span(2.0, 10.0)
FIXED_S, PER_SAMPLE_S = 0.008, 2e-4  # of a whole core
SLOW_START_S = 1.5


def result(name: CellName) -> CellResult:
    """Of a machine that takes exactly the times above, after a slow start."""
    size = int(name.contender.removeprefix("static-")) if name.contender.startswith("static-") else 64
    cores = load_scenario(name.scenario).cores
    lasting_s = (FIXED_S + PER_SAMPLE_S * size) / min(cores)
    per_s = size * len(cores) / lasting_s
    times_s = [SLOW_START_S + 1.0 * number for number in range(1, 50)]
    curve = tuple(CurvePoint(one, round(per_s * (one - SLOW_START_S)), 0.0, 0.5, 1.0) for one in times_s)
    shares = [(FIXED_S + PER_SAMPLE_S * size) / own / lasting_s for own in cores]
    return dataclasses.replace(
        made_up(name.contender, 10.0, seed=name.seed, scenario=name.scenario, workload=name.workload),
        curve=curve,
        sizes=(PlanPoint(0.0, (size,) * len(cores)),),
        workers=tuple(WorkerTimes(rank, share, 0.0, 0.0, 0.0) for rank, share in enumerate(shares)),
    )


def test_what_counts_lies_within_the_span() -> None:
    points = [(1.0, 10), (3.0, 110), (9.0, 710), (11.0, 1110)]
    assert SPAN.seconds_per_sample(points) == pytest.approx(8.0 / (910 - 60))
    assert SPAN.seconds_per_sample([*points, (20.0, 9999)]) == SPAN.seconds_per_sample(points)
    assert SPAN.seconds_per_sample(points[:-1]) is None, "the training ended before the span did"
    assert SPAN.seconds_per_sample([]) is None


def test_a_slow_start_does_not_make_iterations_longer() -> None:
    cell = result(CellName("h-level-4", WORKLOAD, REFERENCE, 1))
    true_s = (FIXED_S + PER_SAMPLE_S * 64) / min(load_scenario("h-level-4").cores)
    assert iteration_s(cell) > 1.02 * true_s
    assert iteration_s(SPAN.steady(cell)) == pytest.approx(true_s, rel=1e-3)


def clocks(factors: Sequence[float]) -> dict[CellName, float]:
    """Of `ppo`, which takes 0.8 times as long as the reference, times the factor of each seed."""
    found = {}
    for seed, factor in enumerate(factors):
        luck = 1e-3 * (1 + seed)
        found[CellName("spot", WORKLOAD, REFERENCE, seed)] = luck
        found[CellName("spot", WORKLOAD, "ppo", seed)] = 0.8 * luck * factor
    return found


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.00, 1.01, 0.99), WITHIN),
        ((1.10, 1.11, 1.09), BEYOND),
        ((0.90, 0.91, 0.89), BEYOND),
        ((0.95, 1.10, 1.05), OPEN),
        ((1.00, 1.00), OPEN),
    ],
)
def test_verdicts(factors: Sequence[float], verdict: str) -> None:
    (found,) = agreements(clocks([1.0] * 9), clocks(factors), ["spot", "bursts"], [REFERENCE, "pid", "ppo"], REFERENCE)
    assert (found.scenario, found.contender, found.seeds) == ("spot", "ppo", len(factors))
    assert found.verdict == verdict
    assert found.measured.value == pytest.approx(0.8)
    assert found.rehearsed.value == pytest.approx(0.8 * found.off.value)
    assert found.off.value == pytest.approx(math.prod(factors) ** (1 / len(factors)))


def test_the_check_is_three_scenarios_four_contenders_and_five_seeds_with_two_fixed_sizes_to_fit() -> None:
    cells = FULL.cells()
    assert len(cells) == len(set(cells)) == 3 * 4 * 5 + 2 * 5
    of_seeds = [[cell for cell in cells if cell.seed == seed] for seed in FULL.seeds]
    assert [cell for some in of_seeds for cell in some] == list(cells), "a seed is complete before the next begins"
    assert len({some[0].contender for some in of_seeds}) == 4, "not always the same contender runs first"
    for scenario in FULL.scenarios:
        fits_here = scenario != "hl-schedule"
        assert (CellName(scenario, WORKLOAD, OTHER_SIZE, 5) in cells) == fits_here
    counted_s = FULL.span.until_s - FULL.span.from_s
    assert counted_s == load_scenario("hl-schedule").repeat_s, "a whole round of the schedule"
    workload = workload_of(FULL.span.until_s)
    assert workload.limit_s > FULL.span.until_s
    assert workload.epochs * workload.train_samples > 5000 * FULL.span.until_s, "no contender is through before"


def test_the_cluster_of_a_rehearsal_comes_from_the_fixed_sizes_alone(tmp_path: Path) -> None:
    check = Check("any", ("h-level-4", "hl-schedule"), (REFERENCE, "ppo", MODEL), (1,), SPAN)
    results = [result(name) for name in check.cells()]
    cells = rehearsals(check, results, tmp_path)
    assert [cell.name.contender for cell in cells] == [REFERENCE, "ppo", MODEL] * 2
    for cell in cells:
        cores = load_scenario(cell.name.scenario).cores
        for worker, own in zip(cell.scenario.workers, cores, strict=True):
            assert own * worker.fixed_s == pytest.approx(FIXED_S, rel=0.02)
            assert own * worker.per_sample_s == pytest.approx(PER_SAMPLE_S, rel=0.02)
        assert cell.config.initial_sizes() == (64,) * len(cores)
        assert bool(cell.scenario.trace) == (cell.name.scenario == "hl-schedule")
    slower = [
        one if one.name.contender.startswith("static-") else dataclasses.replace(one, curve=one.curve[::2])
        for one in results
    ]
    assert [cell.key for cell in rehearsals(check, slower, tmp_path)] == [cell.key for cell in cells]


def test_the_model_alone_follows_an_untrained_policy_without_a_safety_net(tmp_path: Path) -> None:
    model = contender_of(MODEL, tmp_path).policy
    assert model.name == "ppo" and not model.safety.enabled
    assert model.ppo.file is not None and Path(model.ppo.file).parent == tmp_path
    assert contender_of("goodput", tmp_path) is CONTENDERS["goodput"]


def test_what_was_measured_is_not_measured_again_also_where_only_the_tables_are_left(tmp_path: Path) -> None:
    folder = GridFolder(tmp_path / "bed-clock-quick")
    results = [result(name) for name in QUICK.cells()]
    too_short = dataclasses.replace(results[1], curve=results[1].curve[:3])
    folder.path.mkdir()
    write_tables(folder.path, [results[0], too_short])
    first, interrupted = measure(QUICK, folder, deadline_s=time.monotonic() - 1)
    assert set(first) == {results[0].name} and not interrupted
    assert folder.result(results[0].name) is not None, "the result came back from the tables"
    again, _ = measure(QUICK, folder, deadline_s=time.monotonic() - 1)
    assert again == first


def test_the_page_says_what_ran_and_how_near_it_came(tmp_path: Path) -> None:
    (found,) = agreements(clocks([1.0] * 3), clocks([1.02] * 3), ["spot"], ["ppo"], REFERENCE)
    page = write_page(tmp_path, QUICK, [found], {name: result(name) for name in QUICK.cells()})
    text = page.read_text()
    assert f"3 of {len(QUICK.cells())} runs on one of two cores, at 31 to 31 GFLOP/s" in text
    assert (
        "| spot | `ppo` | 3 | 0.800 [0.800, 0.800] | 0.816 [0.816, 0.816] | 1.020 [1.020, 1.020] | **within** |" in text
    )
