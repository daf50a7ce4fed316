"""The spot study: its schedules, which evaluations count, what a start again costs, and what the page says."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.membership import spot, spot_job
from benchmarks.studies.membership.spot import MET, MISSED, OPEN, OURS, PAIRS, THEIRS, Row, answer, main, row_of
from benchmarks.studies.membership.spot_job import CONTENDERS, Outcome, Restarting, Staying, curve_of, reached_in
from benchmarks.studies.membership.spot_launch import SAMPLE_S, Point, config_of
from benchmarks.studies.membership.spot_schedule import BETWEEN_S, FEWEST, FIRST_S, MACHINES, Change, schedule


def outcome(target_s: float, restarting_s: float = 0.0, samples: float = 60_000.0) -> Outcome:
    return Outcome(target_s, samples, notices=2, kills=1, backs=2, starts=3, restarting_s=restarting_s, repeated=40)


def rows(times: list[tuple[float, float]], restarting_s: float = 0.0) -> list[Row]:
    return [
        row
        for seed, (ours, theirs) in enumerate(times)
        for row in (row_of(OURS, seed, outcome(ours)), row_of(THEIRS, seed, outcome(theirs, restarting_s)))
    ]


def test_a_seed_has_one_schedule_in_which_enough_machines_are_always_there() -> None:
    for seed in range(300):
        changes = schedule(seed)
        assert changes == schedule(seed)
        there = set(range(MACHINES))
        for change in changes:
            assert (change.machine in there) == (change.kind != "back")
            there ^= {change.machine}
            assert len(there) >= FEWEST
        gone = [change for change in changes if change.kind != "back"]
        assert FIRST_S[0] <= gone[0].at_s <= FIRST_S[1]
        assert all(after.at_s - before.at_s >= BETWEEN_S[0] for before, after in itertools.pairwise(gone))
        pairs = zip(gone[::2], gone[1::2], strict=False)
        assert all({one.kind, other.kind} == {"notice", "kill"} for one, other in pairs)
    assert schedule(0) != schedule(1)


def points(*found: tuple[float, float, float]) -> list[Point]:
    return [Point(*one) for one in found]


def test_samples_that_come_again_after_a_start_count_once() -> None:
    before = points((1.0, 100, 0.1), (2.0, 200, 0.2), (3.0, 300, 0.9))
    after = points((9.0, 200, 0.3), (10.0, 300, 0.4))
    assert [one.accuracy for one in curve_of([before, [], after])] == [0.1, 0.3, 0.4]
    assert curve_of([before, []]) == before


def test_the_target_is_reached_when_the_evaluation_after_it_has_come() -> None:
    before = points((1.0, 100, 0.1), (2.0, 200, 0.2), (3.0, 300, 0.9))
    assert reached_in([before], 0.5) is None, "the mean of 0.2 and 0.9 is above it, but the next one may be worse"
    assert reached_in([[*before, Point(4.0, 400, 0.1)]], 0.5) is None
    found = reached_in([[*before, Point(4.0, 400, 0.9)]], 0.5)
    assert found is not None
    assert found.time_s == pytest.approx(2.375) and found.samples == pytest.approx(237.5)
    assert reached_in([[]], 0.5) is reached_in([[Point(1.0, 100, 0.9)]], 0.5) is None


class FakeLaunch:
    """A launch of which the test says what has become of it."""

    def __init__(
        self, folder: Path, seed: int, machines: tuple[int, ...], least: int | None, resume: Path | None = None
    ) -> None:
        self.machines, self.least, self.resume = machines, least, resume
        self.began_s: float | None = None
        self.iteration = self.reached = 0
        self.checkpoint: Path | None = None
        self.entered: set[int] = set()
        self.over = False
        self.signals: list[tuple[int, signal.Signals]] = []
        self.told_to_end = False
        self.run = None
        self.output = "its output"

    def strike(self, machine: int, number: signal.Signals) -> bool:
        self.signals.append((machine, number))
        return True

    def end(self) -> None:
        self.told_to_end = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_job, "Launch", FakeLaunch)


@pytest.mark.usefixtures("fake")
def test_restarts_begin_again_from_the_newest_checkpoint_with_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.studies.membership.spot_job.time.time", lambda: 100.0)
    job: Any = Restarting(tmp_path, seed=0)
    job.launch()
    first = job.newest
    first.began_s = 90.0
    job.change(Change(0.0, 2, "kill"))
    assert first.signals == [(2, signal.SIGKILL)] and not first.told_to_end
    job.change(Change(0.0, 2, "back"))
    job.change(Change(0.0, 1, "notice"))
    assert first.told_to_end
    first.over, first.reached, first.checkpoint = True, 130, tmp_path / "last.pt"
    job.tick()
    second = job.newest
    assert (second.machines, second.resume, second.least) == ((0, 2, 3), tmp_path / "last.pt", None)
    job.change(Change(0.0, 0, "notice"))
    assert second.signals == [(0, signal.SIGKILL)], "there is nothing to save before it trains"
    second.began_s = 108.0  # it had begun just before
    job.tick()
    second.over = True
    job.tick()
    third = job.newest
    assert (third.machines, third.resume) == ((2, 3), tmp_path / "last.pt")
    third.began_s, third.iteration = 112.5, 100
    job.tick()
    cost = job.priced(outcome(60.0))
    assert (cost.target_s, cost.starts, cost.restarting_s, cost.repeated) == (60.0, 2, 12.5, 30)
    job.change(Change(0.0, 0, "kill"))
    assert not third.signals, "it does not run there"
    third.over = True
    with pytest.raises(SystemExit, match="its output"):
        job.tick()


@pytest.mark.usefixtures("fake")
def test_membership_stays_and_asks_for_those_that_are_back_until_they_have_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(spot_job, "request", lambda run, kind, rank: asked.append(rank))
    monkeypatch.setattr(spot_job, "ASK_AGAIN_S", 0.0)
    job: Any = Staying(tmp_path, seed=0)
    job.launch()
    launch = job.newest
    launch.run = object()
    assert (launch.machines, launch.least) == ((0, 1, 2, 3), 1)
    job.change(Change(0.0, 2, "notice"))
    job.change(Change(0.0, 1, "kill"))
    job.tick()
    assert launch.signals == [(2, signal.SIGTERM), (1, signal.SIGKILL)] and not asked
    job.change(Change(0.0, 1, "back"))
    job.tick()
    job.tick()
    launch.entered = {1}
    job.tick()
    assert asked == [1, 1]
    job.change(Change(0.0, 2, "back"))
    job.change(Change(0.0, 2, "kill"))
    job.tick()
    assert asked == [1, 1], "it is gone again"
    launch.over = True
    with pytest.raises(SystemExit, match="its output"):
        job.tick()


def test_machines_keep_their_speed_whatever_their_rank(tmp_path: Path) -> None:
    elastic, other = (
        config_of(tmp_path, 3, machines, least) for machines, least in (((0, 1, 2, 3), 1), ((0, 3), None))
    )
    assert elastic.elastic.min_workers == 1 and other.elastic.min_workers is None
    assert elastic.command[-4:] == tuple(map(str, SAMPLE_S))
    assert other.command[-2:] == (str(SAMPLE_S[0]), str(SAMPLE_S[3])) and len(other.cluster.workers) == 2
    assert elastic.checkpoint_every == other.checkpoint_every == 50
    assert elastic.policy.name == other.policy.name == "ppo"


def test_verdicts() -> None:
    assert answer(rows([(50.0, 100.0)])[:1]) is None
    few = answer(rows([(50.0, 100.0), (52.0, 100.0)], restarting_s=20.0))
    assert few is not None
    assert (few.pairs, few.verdict) == (2, OPEN)
    assert few.time.value == pytest.approx(0.51, abs=0.001)
    assert few.without_starts.value == pytest.approx(0.637, abs=0.001)
    assert few.samples.value == pytest.approx(1.0)
    spread = [0.9, 1.0, 1.1, 1.0] * (PAIRS // 4)
    for middle, verdict in ((0.5, MET), (0.9, MISSED), (0.7, OPEN)):
        found = answer(rows([(100 * middle * each, 100.0) for each in spread]))
        assert found is not None and found.verdict == verdict
        assert 0.05 < found.shown < 0.15


def test_what_has_ended_does_not_run_again_and_the_page_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[tuple[str, int]] = []

    def run_job(name: str, seed: int, target: float, folder: Path) -> Outcome:
        jobs.append((name, seed))
        if len(jobs) == 2:
            raise SystemExit("it failed")
        return outcome(60.0 if name == OURS else 120.0)

    monkeypatch.setattr(spot, "run_job", run_job)
    monkeypatch.setattr(spot, "PAIRS", 2)
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path)])
    assert main(["--out", str(tmp_path), "--json", str(tmp_path / "figures.json")]) == 0
    assert jobs == [(OURS, 0), (THEIRS, 0), (THEIRS, 0), (THEIRS, 1), (OURS, 1)]
    shown = json.loads((tmp_path / "figures.json").read_text())
    assert (shown["left"], shown["answer"]["verdict"]) == (0, MET)
    text = (tmp_path / "spot.md").read_text()
    assert "`python -m benchmarks.studies.membership.spot`: 4 trainings to 85 % test accuracy on " in text
    assert "| restarts from checkpoints | 120.0 | 60,000 | 2.0 | 1.0 | 2.0 | 3.0 | 0.0 | 40 |" in text
    assert list(CONTENDERS) == [OURS, THEIRS]


def test_no_training_begins_after_the_limit(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--limit-s", "-1", "--quick", "--json", str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text()) == {"left": 2, "answer": None}
    assert not (tmp_path / "spot-quick.md").exists()
