"""The soak: what it finds wrong, when an event can be, and what it tells of events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.studies.membership.soak import page, row_of
from benchmarks.studies.membership.soak_events import BACK, GONE, KINDS, SPARED
from benchmarks.studies.membership.soak_job import Outcome
from benchmarks.studies.membership.soak_launch import OnHosts
from benchmarks.studies.membership.soak_members import SCHEDULERS, Members, measure_pauses
from benchmarks.studies.membership.soak_place import HOME, NETWORK
from benchmarks.studies.membership.soak_plan import FULL, SHORT, config_of
from benchmarks.studies.membership.soak_site import Event
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
from dynamix_ps.launch.roles.plan import RoleSpec
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


def begin(members: Members, kind: str, role: str, pid: int = 5, lasts_s: float = 0.0) -> Event:
    event = members.begin(0, kind, role, pid, lasts_s, strength=0.5)
    event.incarnation = "start-0"
    return event


def lose(folder: Path, *processes: tuple[str, int, str, float], reason: str = "it has exited") -> None:
    """As the coordinator and the arbitrator write it: role, slot, incarnation, and when, on the monotonic clock."""
    run = run_in(folder)
    run.arbitrator_dir.mkdir(parents=True, exist_ok=True)
    with run.membership_file.open("a") as records, run.journal_file.open("a") as notes:
        for role, slot, incarnation, at_s in processes:
            process = {"role": role, "slot": slot, "incarnation": incarnation}
            records.write(json.dumps([{"kind": "lost", "process": process, "reason": reason}]) + "\n")
            time_s = at_s + time.time() - time.monotonic()
            notes.write(json.dumps({"kind": "lost", "time_s": time_s, **process, "reason": reason}) + "\n")


def test_an_event_has_its_effect_when_a_sum_shows_it(tmp_path: Path) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset())
    for rank in (0, 1, 2):
        tell(tmp_path, rank, 0, [0, 1, 2], 10.0)
    members.look()
    assert members.present == {0, 1, 2}
    event = begin(members, "leave", "worker-1")
    event.at_s = 11.0
    assert members.staying("worker") == {0, 2}
    tell(tmp_path, 0, 1, [0, 1, 2], 11.5)
    members.look()
    assert members.awaited == {"worker-1": event} and event.effect_s is None
    tell(tmp_path, 0, 2, [0, 2], 13.0)
    tell(tmp_path, 2, 1, [0, 1, 2], 13.2)
    members.look()
    assert (event.effect_s, event.iteration) == (2.0, 2)
    members.over(event)
    assert (members.awaited, members.undecided) == ({}, [event])
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
    members, now_s = Members(tmp_path, run, frozenset({0, 1, 2})), time.monotonic()
    tell(tmp_path, 0, 0, [0, 1], now_s)
    members.look()
    event = begin(members, "stop-server", "server-1")
    event.at_s = now_s
    tell(tmp_path, 0, 1, [0, 1], now_s + 0.1)
    members.look()
    assert event.effect_s is None and members.staying("server") == {0, 2}
    lose(tmp_path, ("server", 1, "start-0", now_s + 2.0))
    tell(tmp_path, 0, 2, [0, 1], now_s + 1.9)
    members.look()
    assert event.effect_s is None and members.servers == {0, 2}
    tell(tmp_path, 0, 3, [0, 1], now_s + 2.5)
    members.look()
    assert (event.effect_s, event.iteration) == (pytest.approx(2.5), 3)


def test_a_server_sums_from_its_entry_on_until_it_is_lost(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.workers_dir.mkdir(parents=True)
    members, now_s = Members(tmp_path, run, frozenset({0, 1})), time.monotonic()
    lose(tmp_path, ("server", 1, "start-0", now_s - 9.0), ("worker", 0, "start-0", now_s - 8.0))
    members.look()
    assert members.servers == {0}
    run.worker_file(0).write_text(json.dumps({"kind": "servers_entered", "time_s": 0.0, "entered": [1]}) + "\n")
    members.look()
    assert members.servers == {0, 1}, "whatever the clock of that worker says"
    lose(tmp_path, ("server", 1, "start-1", time.monotonic()))
    members.look()
    assert members.servers == {0}
    run.journal_file.unlink()  # the disk was full when it was to be told
    late = Members(tmp_path, run, frozenset({0, 1, 2}))
    late.look()
    assert [(loss.role, loss.incarnation) for loss in late.losses] == [
        ("server-1", "start-0"),
        ("worker-0", "start-0"),
        ("server-1", "start-1"),
    ]


def test_what_spares_a_role_has_its_effect_with_the_first_sum_after_it(tmp_path: Path) -> None:
    members, now_s = Members(tmp_path, run_in(tmp_path), frozenset()), time.monotonic()
    tell(tmp_path, 0, 0, [0, 1], now_s)
    members.look()
    event = begin(members, "loss-worker", "worker-1")
    event.at_s = now_s
    assert members.staying("worker") == {0, 1}, "it does not go"
    tell(tmp_path, 0, 1, [0, 1], now_s + 1.0)
    members.look()
    assert event.effect_s is None, "it goes on"
    event.healed_s = now_s + 3.0
    tell(tmp_path, 0, 2, [0, 1], now_s + 2.9)
    tell(tmp_path, 0, 3, [0, 1], now_s + 3.5)
    members.look()
    assert (event.effect_s, event.iteration) == (pytest.approx(3.5), 3)


@pytest.mark.parametrize(
    ("kind", "role", "reason", "wrong"),
    [
        ("cut-worker", "worker-1", "its lease ran out while others waited", False),
        ("blink-worker", "worker-1", "its lease ran out while others waited", True),
        ("cut-worker", "worker-0", "its lease ran out while others waited", True),
        ("cut-coordinator", "arbitrator", "its lease ran out while others waited", True),
        ("kill-server", "server-0", "it has exited", True),
    ],
)
def test_nobody_is_lost_whom_no_event_explains(tmp_path: Path, kind: str, role: str, reason: str, wrong: bool) -> None:
    members, now_s = Members(tmp_path, run_in(tmp_path), frozenset()), time.monotonic()
    tell(tmp_path, 1, 0, [0, 1], now_s)
    event = begin(members, kind, role)
    event.at_s, event.healed_s = now_s + 1.0, now_s + 4.0
    lose(tmp_path, ("worker", 1, "start-0", now_s + 3.0), reason=reason)
    members.look()
    assert bool(list(members.without_cause([event]))) == wrong


def test_a_worker_may_end_that_lacks_a_sum_of_a_lost_server_or_has_not_entered(tmp_path: Path) -> None:
    members, now_s = Members(tmp_path, run_in(tmp_path), frozenset({0})), time.monotonic()
    tell(tmp_path, 1, 0, [0, 1], now_s)
    lose(tmp_path, ("worker", 1, "start-0", now_s + 3.0), ("worker", 1, "start-1", now_s + 4.0))
    members.look()
    assert len(list(members.without_cause([]))) == 1, "it was in a sum"
    event = begin(members, "kill-server", "server-0")
    event.at_s, event.healed_s = now_s + 1.0, now_s + 1.0
    lose(tmp_path, ("server", 0, "start-0", now_s + 2.0))
    members.look()
    assert list(members.without_cause([event])) == []
    tell(tmp_path, 0, 1, [0, 1], now_s + 2.0)
    lose(tmp_path, ("worker", 0, "start-0", now_s + 3.0), reason="its lease ran out while others waited")
    members.look()
    assert len(list(members.without_cause([event]))) == 1, "it did not end by itself"


@pytest.mark.parametrize(
    ("incarnation", "lost_s", "wrong"),
    [("start-0", 0.5, True), ("start-0", 1.5, False), ("start-0", 99.0, False), ("start-1", 1.5, True)],
)
def test_an_event_explains_the_loss_of_the_process_that_it_strikes(
    tmp_path: Path, incarnation: str, lost_s: float, wrong: bool
) -> None:
    members, now_s = Members(tmp_path, run_in(tmp_path), frozenset()), time.monotonic()
    for start in (0, 1):
        tell(tmp_path, 1, start, [0, 1], now_s, start=start)
    event = begin(members, "cut-worker", "worker-1")
    event.at_s, event.healed_s = now_s + 1.0, now_s + 4.0
    lose(tmp_path, ("worker", 1, incarnation, now_s + lost_s))
    members.look()
    assert bool(list(members.without_cause([event]))) == wrong


def test_a_sum_of_a_worker_that_counts_as_lost_is_none_of_the_job(tmp_path: Path) -> None:
    """A worker that was stopped may go on, with a sum that the others have made anew without it."""
    run = run_in(tmp_path)
    run.workers_dir.mkdir(parents=True)
    members, now_s = Members(tmp_path, run, frozenset()), time.monotonic()
    for rank in (0, 1):
        tell(tmp_path, rank, 0, [0, 1], now_s)
    tell(tmp_path, 0, 1, [0, 1], now_s + 2.0)
    tell(tmp_path, 1, 1, [1], now_s + 1.9)
    tell(tmp_path, 0, 2, [0, 1], now_s + 9.0, start=1)
    lose(tmp_path, ("worker", 0, "start-0", now_s + 1.0))
    members.look()
    assert {rank: [one.iteration for one, _ in sums] for rank, sums in members.told.items()} == {0: [0, 2], 1: [0, 1]}
    assert history(one for sums in members.told.values() for one, _ in sums)[1] == []


GO = [name for name, kind in KINDS.items() if kind.effect == GONE]


@pytest.mark.parametrize("key", GO)
def test_nobody_goes_where_too_few_would_stay(tmp_path: Path, key: str) -> None:
    members, kind = Members(tmp_path, run_in(tmp_path), frozenset({0, 1, 2}), frozenset({0, 1, 2})), KINDS[key]
    role = kind.role
    assert members.can(kind, f"{role}-0", 0, pid=5, fewest=2)
    assert not members.can(kind, f"{role}-3", 3, pid=5, fewest=2), "it is not there yet"
    assert not members.can(kind, f"{role}-0", 0, pid=0, fewest=2), "it has no process"
    begin(members, f"blink-{role}", f"{role}-1")
    assert members.can(kind, f"{role}-0", 0, pid=5, fewest=2), "the other one stays"
    members.over(members.awaited[f"{role}-1"])
    begin(members, "kill-server" if role == "server" else "kill", f"{role}-1")
    assert not members.can(kind, f"{role}-0", 0, pid=5, fewest=2)
    assert not members.can(kind, f"{role}-1", 1, pid=6, fewest=1), "one thing at a time"


@pytest.mark.parametrize("key", [name for name, kind in KINDS.items() if kind.effect == SPARED])
def test_what_spares_a_role_happens_to_all_that_have_a_process(tmp_path: Path, key: str) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset({0}), present=frozenset({0}))
    assert members.can(KINDS[key], "any-3", 3, pid=5, fewest=9) and not members.can(KINDS[key], "any-3", 3, 0, 0)


def test_a_scheduler_is_lost_again_when_it_has_been_started_again_and_not_too_often(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.path.mkdir(parents=True)
    members, kind = Members(tmp_path, run, frozenset()), KINDS["kill-scheduler"]
    for restarts in range(1, SCHEDULERS + 1):
        assert members.can(kind, "scheduler", 0, pid=5, fewest=0)
        assert not members.can(kind, "scheduler", 0, pid=0, fewest=0)
        event = begin(members, "kill-scheduler", "scheduler")
        tell(tmp_path, 0, 2 * restarts, [0], time.monotonic())
        members.look()
        assert not members.can(kind, "scheduler", 0, pid=5, fewest=0), "nothing is in its place"
        with run.events_file.open("a") as file:
            line = {"kind": "role_restarted", "role": "scheduler", "restarts": restarts, "time_s": time.time()}
            file.write(json.dumps(line) + "\n")
        tell(tmp_path, 0, 2 * restarts + 1, [0], time.monotonic() + 0.5)
        members.look()
        assert event.effect_s is not None
        members.over(event)
    assert not members.can(kind, "scheduler", 0, pid=5, fewest=0)


def test_who_is_gone_may_come_back(tmp_path: Path) -> None:
    members = Members(tmp_path, run_in(tmp_path), frozenset(), present=frozenset({0, 1}))
    asked = ((2, 0), (2, 7), (1, 0))
    assert [members.can(KINDS["join"], f"worker-{rank}", rank, pid, 2) for rank, pid in asked] == [True, False, False]


def test_rows_and_page_tell_what_happened() -> None:
    event = Event(0, "kill", "worker-2", 7, 5.0, 0.0, 0.5, 4, 3, 9, effect_s=0.25, healed_s=5.5, pause_s=0.5)
    own = ["byteps", "8", "0", "5.00", "kill", "worker-2", "0.50", "0.50", "4", "3", "9", "0.250", "0.500"]
    plan, ring = replace(SHORT, seed=8), replace(SHORT, plane="gloo")
    assert list(row_of(plan, event).values()) == own
    text = page("the call", [SHORT, plan, ring], [(plan, Outcome([event], 100))])
    assert "`comm: byteps`: 1 of 40 events, 4 to 4 workers, 3 servers, 100 iterations" in text
    assert "| `kill -9` | 1 | 0.25 s | 0.25 s | 0.50 s | 0.50 s |" in text and "All ended right" in text
    assert "gloo" not in text, "it has not ended"
    broken = [(plan, Outcome([event], 0)), (ring, Outcome([], 0, ["it broke"]))]
    text = page("the call", [plan, ring], broken)
    assert "`comm: gloo`: 0 of 20 events" in text and "- **wrong**, gloo, seed 0: it broke" in text


def test_the_job_is_of_the_size_of_the_plan(tmp_path: Path) -> None:
    config = config_of(FULL, tmp_path, "10.0.0.1")
    assert (len(config.cluster.workers), len(config.cluster.servers), config.elastic.min_workers) == (8, 3, 1)
    assert (FULL.events, FULL.during_s, config.cluster.host) == (100, 1800.0, "10.0.0.1")
    ring = config_of(replace(SHORT, plane="gloo"), tmp_path, "10.0.0.1")
    assert (ring.comm, ring.cluster.servers, ring.elastic.restarts) == ("gloo", None, 1000)


def test_all_kinds_of_events_can_happen_to_roles_of_the_plan() -> None:
    assert all(SHORT.names(kind.role) for kind in KINDS.values())
    ring = replace(SHORT, plane="gloo")
    assert {kind.role for kind in KINDS.values() if not ring.names(kind.role)} == {"server", "scheduler"}
    assert {kind.effect for kind in KINDS.values()} == {GONE, BACK, SPARED, "again"}


@pytest.mark.parametrize(("servers", "meeting"), [("3", "a"), ("0", "b")])
def test_every_role_is_on_its_own_host(servers: str, meeting: str) -> None:
    hosts = {HOME: ("a", "/net/a"), "worker-0": ("b", "/net/b"), "server-0": ("c", "/net/c")}
    common = {"DMLC_NUM_SERVER": servers, "DMLC_PS_ROOT_URI": "a"}
    placed = OnHosts(hosts)
    worker = placed.place(RoleSpec("worker-0", "worker", ("python",), common, rank=0))
    assert (worker.argv, worker.env["DMLC_NODE_HOST"], worker.env[NETWORK]) == (("python",), "b", "/net/b")
    assert worker.env["DMLC_PS_ROOT_URI"] == meeting, "a ring has no scheduler"
    server = placed.place(RoleSpec("server-0", "server", ("python",), common))
    assert (server.argv[:2], server.env["DMLC_NODE_HOST"]) == (("nsenter", "--net=/net/c"), "c")
    assert placed.place(RoleSpec("arbitrator", "arbitrator", ("python",), common)).env["DMLC_NODE_HOST"] == "a"
