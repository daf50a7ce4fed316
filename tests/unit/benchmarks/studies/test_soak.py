"""The soak: what it finds wrong, when an event can be, and what it tells of events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.studies.membership.soak import page, row_of
from benchmarks.studies.membership.soak_events import KINDS, SCHEDULERS, Event, Members, measure_pauses
from benchmarks.studies.membership.soak_job import FULL, RING, SHORT, Outcome, config_of
from benchmarks.studies.membership.soak_training import (
    RATE,
    SAMPLES,
    Sum,
    Training,
    history,
    wrong_memory,
    wrong_samples,
    wrong_weights,
)
from dynamix_ps.run_record.run_folder import RunFolder

HALF = SAMPLES // 2


def sums(epochs: int = 1) -> list[Sum]:
    """Two sums an epoch, with another rate for each."""
    halves = (tuple(range(HALF)), tuple(range(HALF, SAMPLES)))
    return [Sum(number, (0, 1), halves[number % 2], 1.0 + number) for number in range(2 * epochs)]


def test_a_right_history_is_right() -> None:
    told = sums(epochs=2)
    assert history([*told[2:], *told, *told[:3]]) == (told, [])
    assert wrong_samples(told) == []


def test_what_is_wrong_with_a_history_is_told() -> None:
    first, second, third, fourth = sums(epochs=2)
    assert history([first, second, fourth])[1] == ["nobody has made iteration 2"]
    assert history([first, replace(first, factor=2.0)])[1] == ["workers tell different things of iteration 0"]
    assert wrong_samples([first, second, third, third]) == ["epoch 1 has not every sample once"]
    assert wrong_samples([first]) == ["epoch 0 has not every sample once"]


def trained(steps: Sequence[Sum]) -> list[torch.Tensor]:
    """With the two halves of every sum computed apart, as workers do."""
    own = Training()
    inputs, targets = own.data.tensors
    for one in steps:
        own.optimizer.param_groups[0]["lr"] = RATE * one.factor
        own.optimizer.zero_grad()
        for part in (list(one.numbers[: HALF // 2]), list(one.numbers[HALF // 2 :])):
            loss = cross_entropy(own.model(inputs[part]), targets[part]) * len(part) / len(one.numbers)
            loss.backward()  # type: ignore[no-untyped-call]
        own.optimizer.step()
    return [parameter.detach() for parameter in own.model.parameters()]


def test_weights_are_compared_with_each_other_and_with_one_process() -> None:
    steps = [replace(one, factor=1.0) for one in sums(epochs=200)]
    right = trained(steps)
    assert wrong_weights(steps, {0: right, 3: right}) == []
    assert wrong_weights(steps, {}) == ["no worker has written its weights"]
    other = [right[0] + 1e-7, right[1]]
    assert wrong_weights(steps, {1: right, 2: other}) == ["the weights of worker 2 are not those of worker 1"]
    (told, *_) = wrong_weights(steps[:-1], {0: right})
    assert told.startswith("weights differ from those of one process by ")


def test_a_process_that_grows_is_named_and_one_that_begins_late_is_not() -> None:
    times_s = [float(second) for second in range(100)]
    flat = [(at_s, 200_000_000 + int(at_s) % 3) for at_s in times_s]
    grows = [(at_s, 200_000_000 + 1_000_000 * int(at_s)) for at_s in times_s]
    late = [(at_s, int(1e6 * at_s)) for at_s in times_s[60:]]
    again = [(at_s, 27_000_000 if at_s < 50 else 76_000_000) for at_s in times_s[45:]]
    assert wrong_memory({"a": flat, "late": late, "still starting in the second quarter": again}) == []
    assert wrong_memory({"a": flat, "b": grows}) == ["b grew from 237 to 287 MB"]
    assert wrong_memory({}) == []


def run_in(folder: Path) -> RunFolder:
    return RunFolder(folder / "runs" / "latest")


def tell(folder: Path, rank: int, iteration: int, present: Sequence[int], at_s: float, start: int = 0) -> None:
    line = {"kind": "sum", "iteration": iteration, "present": present, "numbers": [], "factor": 1.0, "at_s": at_s}
    with (folder / f"sums-{rank}-{start}.jsonl").open("a") as out:
        out.write(json.dumps(line) + "\n")


def test_an_event_has_its_effect_when_a_sum_shows_it(tmp_path: Path) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset())
    for rank in (0, 1, 2):
        tell(tmp_path, rank, 0, [0, 1, 2], 10.0)
    members.look()
    assert members.present == {0, 1, 2}
    event = members.begin("leave", 1, pid=5, number=0)
    event.at_s = 11.0
    assert members.staying("worker") == {0, 2}
    tell(tmp_path, 0, 1, [0, 1, 2], 11.5)
    members.look()
    assert members.awaited == {"worker-1": event}
    tell(tmp_path, 0, 2, [0, 2], 13.0)
    tell(tmp_path, 2, 1, [0, 1, 2], 13.2)
    members.look()
    assert (event.effect_s, event.iteration, members.awaited) == (2.0, 2, {})
    tell(tmp_path, 0, 3, [0, 2], 99.0)  # too late to count
    tell(tmp_path, 2, 2, [0, 2], 13.7)
    tell(tmp_path, 1, 1, [0, 1, 2], 15.0)  # of the one that goes
    members.look()
    measure_pauses([event], members.told)
    assert event.pause_s == 86.0, "it began within a second of the effect"
    measure_pauses([event], {**members.told, 0: members.told[0][:3]})
    assert event.pause_s == pytest.approx(3.2), "of worker 2, from 10.0 to 13.2"


def test_an_event_of_a_server_has_its_effect_with_the_first_sum_without_it(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.workers_dir.mkdir(parents=True)
    run.arbitrator_dir.mkdir()
    members = Members(tmp_path, run, frozenset({0, 1, 2}))
    now_s, ahead_s = time.monotonic(), time.time() - time.monotonic()
    tell(tmp_path, 0, 0, [0, 1], now_s)
    members.look()
    event = members.begin("stop-server", 1, pid=0, number=0)
    event.at_s, event.pid = now_s, os.getpid()  # which goes on
    tell(tmp_path, 0, 1, [0, 1], now_s + 0.1)
    members.look()
    assert members.awaited == {"server-1": event} and members.staying("server") == {0, 2}
    lost = {"kind": "lost", "time_s": now_s + ahead_s + 2.0, "role": "server", "slot": 1, "incarnation": "start-0"}
    run.journal_file.write_text(json.dumps(lost) + "\n")
    tell(tmp_path, 0, 2, [0, 1], now_s + 1.9)
    members.look()
    assert members.awaited and members.servers == {0, 2}
    tell(tmp_path, 0, 3, [0, 1], now_s + 2.5)
    members.look()
    assert (event.effect_s, event.iteration, members.awaited) == (pytest.approx(2.5), 3, {})
    entered = {"kind": "servers_entered", "time_s": now_s + ahead_s + 4.0, "entered": [1]}
    run.worker_file(0).write_text(json.dumps(entered) + "\n")
    members.look()
    assert members.servers == {0, 1, 2}
    with run.journal_file.open("a") as journal:
        for role in ("server", "worker"):
            journal.write(json.dumps({**lost, "role": role, "time_s": now_s + ahead_s + 6.0}) + "\n")
    members.look()
    with run.worker_file(1).open("a") as late:
        late.write(json.dumps({**entered, "time_s": now_s + ahead_s + 5.0}) + "\n")
    members.look()
    assert (members.servers, members.servers_lost) == ({0, 2}, {1: 2}), "a line that is written later may be older"


def test_a_sum_of_a_worker_that_counts_as_lost_is_none_of_the_job(tmp_path: Path) -> None:
    """A worker that was stopped may go on, with a sum that the others have made anew without it."""
    run = run_in(tmp_path)
    run.workers_dir.mkdir(parents=True)
    run.arbitrator_dir.mkdir()
    members, now_s = Members(tmp_path, run, frozenset()), time.monotonic()
    for rank in (0, 1):
        tell(tmp_path, rank, 0, [0, 1], now_s)
    tell(tmp_path, 0, 1, [0, 1], now_s + 2.0)
    tell(tmp_path, 1, 1, [1], now_s + 1.9)
    tell(tmp_path, 0, 2, [0, 1], now_s + 9.0, start=1)
    lost = {"kind": "lost", "time_s": time.time() + 1.0, "role": "worker", "slot": 0, "incarnation": "start-0"}
    run.journal_file.write_text(json.dumps(lost) + "\n")
    members.look()
    assert {rank: [one.iteration for one, _ in sums] for rank, sums in members.told.items()} == {0: [0, 2], 1: [0, 1]}
    assert history(one for sums in members.told.values() for one, _ in sums)[1] == []


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.role != "scheduler" and name != "join"])
def test_nobody_goes_where_too_few_would_stay(tmp_path: Path, kind: str) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset({0, 1, 2}), present=frozenset({0, 1, 2}))
    assert KINDS[kind].can(members, 0, pid=5, fewest=2)
    assert not KINDS[kind].can(members, 3, pid=5, fewest=2), "it is not there yet"
    assert not KINDS[kind].can(members, 0, pid=0, fewest=2), "it has no process"
    members.begin("kill-server" if KINDS[kind].role == "server" else "kill", 1, pid=6, number=0)
    assert not KINDS[kind].can(members, 0, pid=5, fewest=2)
    assert not KINDS[kind].can(members, 1, pid=6, fewest=1), "one thing at a time"


def test_a_scheduler_is_lost_again_when_it_has_been_started_again_and_not_too_often(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.path.mkdir(parents=True)
    members, kind = Members(tmp_path, run, frozenset()), KINDS["kill-scheduler"]
    for restarts in range(1, SCHEDULERS + 1):
        assert kind.can(members, 0, pid=5, fewest=0) and not kind.can(members, 0, pid=0, fewest=0)
        members.begin("kill-scheduler", 0, pid=5, number=0)
        tell(tmp_path, 0, 2 * restarts, [0], time.monotonic())
        members.look()
        assert not kind.can(members, 0, pid=5, fewest=0), "nothing is in its place"
        with run.events_file.open("a") as file:
            line = {"kind": "role_restarted", "role": "scheduler", "restarts": restarts, "time_s": time.time()}
            file.write(json.dumps(line) + "\n")
        tell(tmp_path, 0, 2 * restarts + 1, [0], time.monotonic() + 0.5)
        members.look()
        assert not members.awaited
    assert not kind.can(members, 0, pid=5, fewest=0)


def test_who_is_gone_may_come_back(tmp_path: Path) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset(), present=frozenset({0, 1}))
    assert [KINDS["join"].can(members, rank, pid, fewest=2) for rank, pid in ((2, 0), (2, 7), (1, 0))] == [
        True,
        False,
        False,
    ]


def test_rows_and_page_tell_what_happened() -> None:
    event = Event(0, "kill", 2, pid=7, at_s=5.0, workers=4, servers=3, iteration=9, effect_s=0.25, pause_s=0.5)
    assert list(row_of(8, event).values()) == ["8", "0", "5.00", "kill", "worker-2", "4", "3", "9", "0.250", "0.500"]
    text = page("the call", 2, [(SHORT, Outcome([event], 100))])
    assert "`the call`: 1 of 40 events, 4 to 4 workers, 3 servers, 100 iterations" in text
    assert "| `kill -9` | 1 | 0.25 s | 0.25 s | 0.50 s | 0.50 s |" in text and "All ended right" in text
    broken = [(SHORT, Outcome([], 0)), (replace(SHORT, seed=5), Outcome([], 0, ["it broke"]))]
    assert "- **wrong**, seed 5: it broke" in page("the call", 2, broken)


def test_the_job_is_of_the_size_of_the_plan(tmp_path: Path) -> None:
    config = config_of(FULL, tmp_path)
    assert (len(config.cluster.workers), len(config.cluster.servers), config.elastic.min_workers) == (8, 3, 1)
    assert (FULL.events, FULL.during_s) == (100, 1800.0)


def test_workers_of_a_ring_come_back_too(tmp_path: Path) -> None:
    config = config_of(RING, tmp_path)
    assert (config.comm, config.cluster.servers, config.elastic.restarts) == ("gloo", None, 1000)
