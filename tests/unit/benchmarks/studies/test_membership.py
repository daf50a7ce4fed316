"""The study of membership: what counts as a wait, as lost and as repeated, and what the page says of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies.membership import cost as membership
from benchmarks.studies.membership.cost import CASES, MET, MISSED, OPEN, Row, findings, main, row_of
from benchmarks.studies.membership.cost_job import (
    DECIDED,
    ITERATIONS,
    SETTLED,
    STRUCK_AT,
    WORKERS,
    Event,
    Outcome,
    Steps,
    config_of,
    outcome_of,
)

KILL, STOP, SERVER, LEAVE, JOIN, RING = CASES
OUTCOME = Outcome(iteration_s=0.2, wait_s=0.5, lost=0, repeated=0, equal=True)


def steps(late_s: float = 0.0) -> list[tuple[int, float]]:
    """Iterations of 0.2 s, the first ones slower, and those from STRUCK_AT on later than they would be."""
    at_s = [1.0 + 0.2 * number + (late_s if number >= STRUCK_AT else 0.0) for number in range(ITERATIONS)]
    return list(enumerate([at_s[0] - 5.0, *at_s[1:]]))


def rows(beyond_s: Sequence[float], **changes: str) -> list[Row]:
    return [{**row_of(KILL, run, OUTCOME), "beyond_s": str(each), **changes} for run, each in enumerate(beyond_s)]


def test_the_wait_ends_with_the_step_of_the_iteration_of_the_last_of_the_others() -> None:
    struck_s = 1.0 + 0.2 * STRUCK_AT - 0.1  # in its middle
    found = outcome_of(KILL.event, {0: steps(0.3), 1: steps(0.7), 3: steps(0.3)}, equal=True, struck_s=struck_s)
    assert (found.iteration_s, found.wait_s) == (pytest.approx(0.2), pytest.approx(0.8))
    assert found.beyond_s == pytest.approx(0.6)
    assert (found.lost, found.repeated, found.equal) == (0, 0, True)


def test_a_step_that_was_left_out_or_made_twice_is_seen() -> None:
    without = [step for step in steps() if step[0] != STRUCK_AT + 1]
    twice = [*steps(), (STRUCK_AT, 9.5)]
    found = outcome_of(KILL.event, {0: without, 1: twice}, equal=False, struck_s=5.0)
    assert (found.lost, found.repeated, found.equal) == (1, 1, False)
    assert found.wait_s == pytest.approx(4.5)
    never: Steps = steps()[:STRUCK_AT]
    assert outcome_of(KILL.event, {0: never}, equal=True, struck_s=5.0).wait_s == math.inf


@pytest.mark.parametrize(
    ("beyond_s", "changes", "verdict"),
    [
        ([0.3] * 19 + [9.0], {}, MET),
        ([0.3] * 18 + [2.1] * 2, {}, MISSED),
        ([1.1] * 20, {}, MISSED),
        ([0.3] * 19, {}, OPEN),
        ([0.3] * 20, {"lost": "1"}, MISSED),
        ([0.3] * 20, {"repeated": "1"}, MISSED),
        ([0.3] * 20, {"equal": "0"}, MISSED),
        ([0.3] * 20, {"decided": "0"}, MISSED),
    ],
)
def test_verdicts(beyond_s: Sequence[float], changes: dict[str, str], verdict: str) -> None:
    (found,) = findings(rows(beyond_s, **changes), runs=20)
    assert (found.case, found.runs, found.verdict) == ("kill", len(beyond_s), verdict)


def test_every_worker_is_struck_by_turns_and_what_has_ended_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[tuple[Event, int]] = []

    def run_job(event: Event, struck: int) -> Outcome:
        jobs.append((event, struck))
        if len(jobs) == 2:
            raise SystemExit("it failed")
        return OUTCOME

    monkeypatch.setattr(membership, "run_job", run_job)
    monkeypatch.setattr(membership, "RUNS", 5)
    monkeypatch.setattr(membership, "CASES", (KILL,))
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path)])
    assert main(["--out", str(tmp_path), "--json", str(tmp_path / "figures.json")]) == 0
    ranks = [0, 1, *(run % WORKERS for run in range(1, 5))]
    assert jobs == [(KILL.event, rank) for rank in ranks]
    shown = json.loads((tmp_path / "figures.json").read_text())
    assert shown["left"] == 0 and [one["verdict"] for one in shown["cases"]] == [MET]
    text = (tmp_path / "membership.md").read_text()
    assert "`python -m benchmarks.studies.membership.cost`: 5 runs on " in text
    assert (
        "| `kill -9` | 5 | 0.20 s | - | wait beyond an iteration | 0.30 s | 1 | 0.30 s | 2 | 0, 0 | equal | **met** |"
        in text
    )


def test_no_run_begins_after_the_limit(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--limit-s", "-1", "--quick", "--json", str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text()) == {"left": len(CASES), "cases": []}
    assert not (tmp_path / "membership-quick.md").exists()


def test_the_job_goes_on_without_the_worker_that_is_struck(tmp_path: Path) -> None:
    config = config_of(tmp_path, KILL.event, struck=2)
    assert config.elastic.min_workers == len(config.cluster.workers) - 1 == WORKERS - 1
    assert config.elastic.restarts == 0
    words = " ".join(config.command)
    assert words.endswith(f"--struck 2 --at {STRUCK_AT} --signal 9 --out {tmp_path} --iterations {ITERATIONS}")
    assert " --server 0" in " ".join(config_of(tmp_path, SERVER.event, struck=2).command)
    again = config_of(tmp_path, JOIN.event, struck=2)
    assert again.elastic.restarts == 1
    assert " ".join(again.command).endswith(f"--out {tmp_path} --settled {DECIDED}")
    ring = config_of(tmp_path, RING.event, struck=2)
    assert (ring.comm, ring.cluster.servers, ring.command) == ("gloo", None, again.command)
    assert (again.comm, len(again.cluster.servers)) == ("byteps", 2)


def test_while_a_worker_leaves_the_longest_gap_counts() -> None:
    late = [(number, at_s + 0.3 * (number > STRUCK_AT + 1)) for number, at_s in steps()]
    later = [(number, at_s + 9.0 * (number >= STRUCK_AT + SETTLED)) for number, at_s in steps()]
    found = outcome_of(LEAVE.event, {0: late, 1: later}, equal=True)
    assert found.wait_s == pytest.approx(0.5)
    (bar,) = LEAVE.bars
    assert bar.of(row_of(LEAVE, 0, found)) == pytest.approx(2.5, abs=0.01)


def test_where_a_worker_enters_the_gap_before_its_first_step_counts_without_the_copy() -> None:
    entered = STRUCK_AT + 10
    late = [(number, at_s + 0.7 * (number >= entered) + 9.0 * (number == STRUCK_AT)) for number, at_s in steps()]
    found = outcome_of(
        JOIN.event, {0: late, 1: late[: entered + SETTLED]}, equal=True, followed=entered, entered=entered
    )
    assert found.wait_s == pytest.approx(0.9)
    row = row_of(JOIN, 0, replace(found, copy_s=0.5, first_sample_s=6.0))
    assert [bar.of(row) for bar in JOIN.bars] == [pytest.approx(1.0, abs=0.01), 6.0]
    assert found.lost == ITERATIONS - entered - SETTLED, "of the one that made fewer steps"
