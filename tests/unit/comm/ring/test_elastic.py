"""Sums over a ring that outlive a worker: real rings over gloo, whose members are in one process."""

from __future__ import annotations

import socket
import threading

import pytest

from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.ring import elastic
from tests.launching import wait_for
from tests.rings import PATIENCE_S, SIZES, change, job, make

pytestmark = pytest.mark.timeout(90)


def test_the_round_is_made_anew_of_own_values_by_those_that_are_left() -> None:
    with job() as (one, lost, other):
        one.push(0)
        other.push(0)
        assert not one.wait(0.01), "a worker is missing"
        assert change(1, [one, other]) == 0
        assert one.wait() and other.wait()
        assert (one.sum(), other.sum()) == (101, 101)
        assert make([one, other], 1) == {202}
        assert lost.ring.status().first_incomplete == 0


def test_who_is_behind_gets_the_sums_that_another_has_completed() -> None:
    with job() as (ahead, lost, behind):
        for member in (ahead, lost, behind):
            member.push(0)
        assert ahead.wait() and ahead.sum() == 111
        ahead.clear()
        ahead.push(1)
        assert change(1, [ahead, behind]) == 1
        assert behind.wait()
        assert behind.sum() == 111, "as it was before the other changed it"
        behind.push(1)
        assert ahead.wait() and behind.wait()
        assert (ahead.sum(), behind.sum()) == (202, 202)


def test_those_that_are_left_meet_though_the_lowest_one_is_gone() -> None:
    with job() as (lowest, one, other):
        one.push(0)
        other.push(0)
        nowhere = closed_port()
        for member in (one, other):
            member.ring.freeze()
            member.ring.meet({0: nowhere, 1: one.ring.address, 2: other.ring.address})
            member.ring.resume(1, 0, 3, ())
        assert one.ring.next_loss(PATIENCE_S) == PeerFailure("worker", 0)
        assert change(2, [one, other]) == 0
        assert one.wait() and other.wait() and (one.sum(), other.sum()) == (110, 110)
        assert lowest.ring.status().first_incomplete == 0


def test_what_is_pushed_while_there_is_no_ring_is_in_the_next_one() -> None:
    with job() as (one, lost, other):
        for member in (one, other):
            member.ring.freeze()
            member.push(0, begin=2)
        change(1, [one, other])
        assert one.wait() and other.wait()
        assert one.buffers["a"].tolist() == [1, 1, 101, 101, 101], "values before `begin` stay"
        assert other.buffers["a"].tolist() == [100, 100, 101, 101, 101]
        assert not lost.handles


def test_who_sees_the_ring_break_finds_whose_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with job(2) as (one, other):
        change(1, [one, other])
        make([one, other], 0)
        assert one.ring.next_loss(0.01) is None
        other.ring.rounds.groups.clear()  # its connections close
        one.push(1)
        assert not one.wait(0.5)
        assert one.ring.next_loss(0.01) is None, "losses are confirmed at first"
        monkeypatch.setattr(elastic, "_BROKEN_S", 0.0)
        assert one.ring.next_loss(0.01) == PeerFailure("ring", 1), "nobody is gone"
        with monkeypatch.context() as patch:
            patch.setattr(one.ring._worker, "others", {1: closed_port()}.copy)
            assert one.ring.next_loss(PATIENCE_S) == PeerFailure("worker", 1)
            assert one.ring.next_loss(0.01) is None, "both are told once"
        assert change(2, [one, other]) == 1
        other.push(1)
        assert one.wait() and other.wait() and one.sum() == 22


@pytest.mark.slow
def test_who_does_not_answer_is_silent_and_only_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with job() as (one, busy, stopped), socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # connections are taken in by the kernel, and nobody answers
        members = [one, busy, stopped]
        change(1, members)
        make(members, 0)
        others = {**one.ring._worker.others(), stopped.rank: f"127.0.0.1:{deaf.getsockname()[1]}"}
        monkeypatch.setattr(one.ring._worker, "others", others.copy)
        quiet_s = 0.4
        look = threading.Event()
        for _ in range(20):
            assert one.ring.silent(quiet_s) == frozenset(), "it waits for nobody"
            look.wait(0.05)
        one.push(1)
        assert one.ring.silent(quiet_s) == frozenset(), "not yet"
        found: list[frozenset[int]] = []
        while not found or not found[-1]:
            assert len(found) < 1000
            found.append(one.ring.silent(quiet_s))
            look.wait(0.02)
        assert set(found) == {frozenset(), frozenset({stopped.rank})}
        deaf.close()
        wait_for(lambda: not one.ring._watch._asked_s, "the question to end")  # before the interpreter does


def test_memory_is_used_again() -> None:
    with job(2) as (one, other):
        seen: dict[str, set[int]] = {name: set() for name in SIZES}
        for turn in range(6):
            for member in (one, other):
                member.push(turn)
            for part in one.ring.rounds._sums._open:
                seen[part.name].add(part.sum.data_ptr())
            assert one.wait() and other.wait()
        assert {name: len(places) for name, places in seen.items()} == dict.fromkeys(SIZES, 2)


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"
