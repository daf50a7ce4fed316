"""Policies on simulated clusters: what a run is, which policy wins, and how failed runs count."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dynamix_ps.config.schema import PolicySection, Ppo, Safety
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.sim.contest import evaluate as module
from dynamix_ps.sim.contest.contest import TUNED, Contest, best_size, compare, compete, uniform_sizes
from dynamix_ps.sim.contest.contest_report import contest_table, draw_contest, write_rows
from dynamix_ps.sim.contest.evaluate import Cell, SimulatedOutcome, config_of, evaluate
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

UNEVEN = load_scenario("h-level-8").with_workers(4)
SHORT = UNEVEN.model_copy(update={"max_windows": 3})


def outcome(*time_s: float, reached: bool | tuple[bool, ...] = True) -> SimulatedOutcome:
    zeros = np.zeros(len(time_s))
    arrived = np.broadcast_to(np.array(reached), zeros.shape)
    return SimulatedOutcome(np.array(time_s), arrived, zeros.astype(int), zeros, zeros, zeros.astype(int))


def test_a_run_ends_at_the_target_and_says_what_it_took() -> None:
    result = evaluate(Cell(UNEVEN, PolicySection(name="goodput"), seeds=3))
    assert result.reached.all()
    assert (result.accuracy >= UNEVEN.target_accuracy).all()
    assert (result.accuracy < UNEVEN.target_accuracy + 0.05).all()  # and not long after it
    assert (result.windows < UNEVEN.max_windows).all()
    assert len(set(result.time_s)) == 3  # seeds differ
    assert (result.samples_per_s > 0).all()


def test_the_same_cell_gives_the_same_numbers_and_another_seed_others() -> None:
    cell = Cell(SHORT, PolicySection(name="proportional"), seeds=2)
    first, again = evaluate(cell), evaluate(cell)
    other = evaluate(dataclasses.replace(cell, seed=1))
    assert first.time_s.tolist() == again.time_s.tolist() != other.time_s.tolist()


def test_what_does_not_arrive_is_cut_at_max_windows() -> None:
    result = evaluate(Cell(SHORT, PolicySection(name="static"), seeds=2))
    assert not result.reached.any()
    assert result.windows.tolist() == [3, 3]
    assert (result.accuracy < SHORT.target_accuracy).all()


def test_a_watch_sees_every_window_and_who_runs_in_it() -> None:
    seen: list[tuple[list[int], list[bool]]] = []
    ended = evaluate(
        Cell(UNEVEN, PolicySection(name="static", sizes=(200,) * 4), seeds=3),
        lambda simulator, running: seen.append((simulator.windows.tolist(), running.tolist())),
    )
    assert [windows for windows, _ in seen] == [[number] * 3 for number in range(1, max(ended.windows) + 1)]
    assert np.sum([running for _, running in seen], axis=0).tolist() == ended.windows.tolist()


def test_fixed_sizes_are_in_force_from_the_first_window() -> None:
    sizes = (300,) * UNEVEN.n_workers
    assert config_of(UNEVEN, PolicySection(name="static", sizes=sizes)).initial_sizes() == sizes
    assert config_of(UNEVEN, PolicySection(name="pid")).initial_sizes() == UNEVEN.initial_sizes
    slow, fast = (evaluate(Cell(SHORT, PolicySection(name="static", sizes=(b,) * 4), seeds=2)) for b in (2000, 20))
    assert (slow.time_s > 3 * fast.time_s).all()


class Recorder:
    """A policy that asks for other sizes every window and remembers what it saw."""

    name = "recorder"
    all: list[Recorder] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.views: list[View] = []
        self.asked: list[tuple[int, ...]] = []
        Recorder.all.append(self)

    def decide(self, view: View) -> Decision:
        self.views.append(view)
        self.asked.append(tuple(10 + len(self.views) + rank for rank in range(len(view.bounds))))
        return Decision((*self.asked[-1][:-1], 10**9), fallback=True)


def test_decisions_are_guarded_and_in_force_from_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder.all.clear()
    monkeypatch.setattr(module, "make_policy", lambda config, n_workers, rng: Recorder())
    scenario = SHORT.model_copy(update={"max_windows": 5})
    result = evaluate(Cell(scenario, PolicySection(name="ppo"), seeds=2))
    assert len(Recorder.all) == 2  # one for every seed
    for policy in Recorder.all:
        plans = [view.plan.batch_sizes for view in policy.views]
        assert plans[0] == scenario.initial_sizes
        assert plans[1:] == [(*asked[:-1], scenario.batch.max) for asked in policy.asked[:-1]]
        assert all(view.clean for view in policy.views)
        assert [view.window for view in policy.views] == list(range(5))
    assert result.fallbacks.tolist() == [5, 5]


def test_a_learned_policy_with_and_without_its_net() -> None:
    """Untrained weights: the answers are nonsense but sizes; the net steps in where it is asked to."""
    scenario = UNEVEN.model_copy(update={"max_windows": 40})
    learned = PolicySection(name="ppo", ppo=Ppo(space="paper", file="fresh", learn=True))
    alone = learned.model_copy(update={"safety": Safety(enabled=False)})
    assert evaluate(Cell(scenario, learned, seeds=2)).fallbacks.sum() > 0
    assert evaluate(Cell(scenario, alone, seeds=2)).fallbacks.sum() == 0


class TestContest:
    def contest(self) -> Contest:
        return Contest(
            ("one", "two"),
            ("ours", "slow", "quick"),
            {
                ("ours", "one"): outcome(5.0, 5.0),
                ("slow", "one"): outcome(8.0, 8.0),
                ("quick", "one"): outcome(4.0, 10.0),
                ("ours", "two"): outcome(1.0, 1.0, reached=False),  # gave up early
                ("slow", "two"): outcome(6.0, 6.0),
                ("quick", "two"): outcome(2.0, 50.0, reached=(True, False)),
            },
            {},
        )

    def test_not_arriving_never_looks_better_than_arriving(self) -> None:
        contest = self.contest()
        assert contest.counted_s("ours", "two").tolist() == [6.0, 6.0]
        assert contest.counted_s("quick", "two").tolist() == [2.0, 50.0]  # its own time where that is longer
        assert contest.counted_s("ours", "one").tolist() == [5.0, 5.0]

    def test_nobody_arrives(self) -> None:
        nobody = Contest(("x",), ("a",), {("a", "x"): outcome(3.0, 4.0, reached=False)}, {})
        assert nobody.counted_s("a", "x").tolist() == [3.0, 4.0]

    def test_best_rival_of_the_scenario_and_of_the_seed(self) -> None:
        contest, rivals = self.contest(), ("slow", "quick")
        assert contest.best_rival(rivals, "one") == "quick"
        assert contest.best_rival(rivals, "two") == "slow"
        ours, theirs = contest.against_best("ours", rivals, ("one", "two"))
        assert ours.tolist() == [[5.0, 5.0], [6.0, 6.0]]
        assert theirs.tolist() == [[4.0, 10.0], [6.0, 6.0]]
        _, strict = contest.against_every_seed("ours", rivals, ("one", "two"))
        assert strict.tolist() == [[4.0, 8.0], [2.0, 6.0]]

    def test_comparison(self) -> None:
        found = compare(np.full((2, 4), 3.0), np.full((2, 4), 4.0), np.random.default_rng(0))
        assert found.relative_time.value == found.relative_time.high == pytest.approx(0.75)
        assert found.improvement.value == 1

    def test_the_best_size_arrives_first_of_all(self) -> None:
        early_end, late, mid = outcome(1.0, reached=False), outcome(9.0), outcome(7.0)
        assert best_size({8: early_end, 16: late, 32: mid}) == 32

    def test_report(self, tmp_path: Path) -> None:
        contest = self.contest()
        table = contest_table(contest)
        assert list(table.columns[1].cells) == ["[bold]5[/]", "[bold]6!2[/]"]
        assert list(table.columns[3].cells) == ["7", "26!1"]
        assert "never reached" in str(table.caption)
        write_rows(tmp_path / "runs.csv", contest)
        with (tmp_path / "runs.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        assert len(rows) == 12
        assert rows[-1]["reached"] == "False" and rows[-1]["time_s"] == "50.0"
        reference = {name: contest.counted_s("slow", name) for name in contest.scenarios}
        draw_contest(tmp_path / "x.png", contest, reference, "slow")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_contest_in_several_processes() -> None:
    """Uneven speeds: the best of equal sizes loses to shares by speed, at the same total effort."""
    scenario: Scenario = UNEVEN.model_copy(update={"batch": UNEVEN.batch.model_copy(update={"min": 32, "max": 90})})
    assert uniform_sizes(scenario) == (32, 45, 64)
    told: list[tuple[int, int]] = []
    policies = {TUNED: PolicySection(name="static"), "goodput": PolicySection(name="goodput")}
    together = [
        compete([scenario], policies, seeds=2, seed=0, processes=count, on_done=lambda a, b: told.append((a, b)))
        for count in (1, 2)
    ]
    assert told == [(n, 4) for n in (1, 2, 3, 4)] * 2
    one, two = together
    assert one.tuned_sizes == two.tuned_sizes
    name = scenario.name
    assert one.outcomes["goodput", name].time_s.tolist() == two.outcomes["goodput", name].time_s.tolist()
    assert one.tuned_sizes[name] in (32, 45, 64)
    assert one.counted_s("goodput", name).mean() < one.counted_s(TUNED, name).mean()
