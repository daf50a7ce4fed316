"""Workers enter by votes in the sums: the same ones on all workers, with the same iteration."""

from __future__ import annotations

from dynamix_ps.membership.messages import Process
from worker_hooks.membership.entries import Entries


def worker(slot: int, incarnation: str = "b") -> Process:
    return Process("worker", slot, incarnation, f"10.0.0.{slot}:7000")


SERVER = Process("server", 5, "s")


def test_what_all_hold_is_voted_in_once_and_is_due_with_its_iteration() -> None:
    entries, held = Entries(), {1: worker(2)}
    assert entries.vote({}, may_enter=True) == 0
    assert entries.vote(held, may_enter=True) == 1
    assert entries.decide(12, None, held) == [], "not all hold it"
    assert entries.decide(13, 1, held) == [worker(2)]
    assert entries.decide(14, 1, held) == [], "it was voted in before"
    assert (entries.awaited(12), entries.awaited(13)) == ({2}, set())
    assert entries.due(12) == []
    assert entries.due(13) == [worker(2)]
    assert entries.due(13) == []
    assert entries.awaited(0) == set()


def test_a_training_that_takes_no_worker_in_takes_servers_in() -> None:
    entries, held = Entries(), {1: SERVER, 2: worker(3), 3: Process("server", 5, "t")}
    assert entries.vote(held, may_enter=False) == 1, "up to the worker: who holds a version holds all before it"
    assert entries.vote(held, may_enter=True) == 3
    assert entries.decide(5, 1, held) == [SERVER]
    assert entries.awaited(4) == set(), "of workers"
    assert entries.due(5) == [SERVER]


def test_several_at_once_and_only_the_last_one_of_a_place() -> None:
    entries = Entries()
    held = {1: worker(2, "b"), 2: worker(3), 3: Process("server", 2, "s"), 4: worker(2, "c")}
    assert entries.decide(8, 4, held) == [worker(2, "c"), worker(3), held[3]]
    assert entries.version == 4
    assert entries.due(8) == [worker(2, "c"), worker(3), held[3]]
