from __future__ import annotations

import pytest

from dynamix_ps.arbitrator import registry as registry_module
from dynamix_ps.arbitrator.registry import Registry
from dynamix_ps.rpc.refusals import MalformedMessageError, StaleIncarnationError, UnknownWorkerError

LEASE_S = 6.0


def test_registering_is_idempotent() -> None:
    registry = Registry(2, LEASE_S)
    assert registry.register(0, "a", 0.0)
    assert not registry.register(0, "a", 1.0)
    assert registry.live() == {0}


def test_ranks_outside_the_cluster_are_refused() -> None:
    registry = Registry(2, LEASE_S)
    for rank in (-1, 2, 10**12):
        with pytest.raises(MalformedMessageError, match=f"got {rank}, expected 0..1"):
            registry.register(rank, "a", 0.0)
        with pytest.raises(MalformedMessageError):
            registry.heard(rank, "a", 0.0)
    assert registry.live() == set()


def test_who_never_registered_is_told_to() -> None:
    registry = Registry(2, LEASE_S)
    with pytest.raises(UnknownWorkerError, match="register first"):
        registry.heard(0, "a", 0.0)


def test_a_replaced_process_cannot_speak_any_more() -> None:
    registry = Registry(2, LEASE_S)
    registry.register(0, "old", 0.0)
    registry.register(0, "new", 1.0)
    for call in (
        lambda: registry.heard(0, "old", 2.0),
        lambda: registry.register(0, "old", 2.0),
        lambda: registry.leave(0, "old"),
    ):
        with pytest.raises(StaleIncarnationError, match="'old' was replaced"):
            call()
    assert not registry.heard(0, "new", 2.0)


def test_replaced_processes_stay_replaced_after_a_restart() -> None:
    registry = Registry(2, LEASE_S, retired=[(0, "old")])
    with pytest.raises(StaleIncarnationError):
        registry.register(0, "old", 0.0)
    assert registry.register(1, "old", 0.0)


def test_a_lease_runs_out_once_and_comes_back() -> None:
    registry = Registry(1, LEASE_S)
    registry.register(0, "a", 0.0)
    assert registry.expire(6.0) == ()
    assert registry.expire(6.1) == (0,)
    assert registry.expire(7.0) == ()
    assert registry.live() == set()
    assert registry.absent(7.0) == {0}
    assert registry.heard(0, "a", 8.0)
    assert not registry.heard(0, "a", 8.1)
    assert registry.live() == {0}
    assert registry.absent(8.1) == set()


def test_all_workers_are_waited_for_during_the_first_lease() -> None:
    registry = Registry(3, LEASE_S)
    assert registry.absent(1000.0) == set()
    registry.register(0, "a", 1000.0)
    assert registry.absent(1006.0) == set()
    assert registry.absent(1006.1) == {1, 2}
    registry.register(1, "b", 1007.0)
    assert registry.absent(1007.0) == {2}


def test_who_left_is_absent_and_no_longer_missed() -> None:
    registry = Registry(2, LEASE_S)
    registry.register(0, "a", 0.0)
    assert registry.leave(0, "a")
    assert not registry.leave(0, "a")
    assert registry.absent(0.0) == {0}
    assert registry.expire(100.0) == ()


def test_peers_tell_progress_and_silence() -> None:
    registry = Registry(3, LEASE_S)
    registry.register(0, "a", 0.0)
    registry.register(2, "c", 0.0)
    registry.heard(0, "a", 4.0, iteration=17)
    registry.heard(0, "a", 5.0)  # a call that tells no progress takes none back
    first, third = registry.peers(8.0)
    assert (first.rank, first.iteration, first.silent_s, first.alive) == (0, 17, 3.0, True)
    assert (third.rank, third.iteration, third.silent_s, third.alive) == (2, 0, 8.0, False)


def test_workers_are_not_replaced_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "LARGEST_RETIRED", 2)
    registry = Registry(2, LEASE_S)
    for life in ("a", "b", "c"):
        registry.register(0, life, 0.0)
    with pytest.raises(StaleIncarnationError, match="replaced 2 times; start a new run"):
        registry.register(1, "d", 0.0)
    assert not registry.register(0, "c", 0.0), "who is there may stay"


def test_nobody_waits_for_a_lost_worker_whatever_is_heard_of_it() -> None:
    registry = Registry(3, LEASE_S)
    for rank in range(3):
        registry.register(rank, "a", 0.0)
    registry.lose(1)
    registry.heard(1, "a", 1.0)
    assert registry.live() == {0, 2}
    assert registry.absent(1.0) == {1}
    assert [peer.alive for peer in registry.peers(1.0)] == [True, False, True]
    assert registry.expire(10.0) == (0, 2)


def test_a_lost_worker_counts_again_when_another_one_has_its_place() -> None:
    registry = Registry(2, LEASE_S)
    registry.register(0, "a", 0.0)
    registry.register(1, "b", 0.0)
    registry.lose(1)
    registry.heard(1, "b", 1.0)
    registry.register(1, "b", 1.0)
    assert registry.live() == {0}, "whatever is heard of the lost one"
    registry.register(1, "c", 2.0)
    assert registry.live() == {0, 1} and registry.absent(2.0) == frozenset()
