"""What a run says about lost workers and servers, and those that left, whatever is heard first."""

from __future__ import annotations

from itertools import permutations

from dynamix_ps.run_record.losses import MembershipHistory


def left(workers: int, servers: int = 3) -> dict[str, int]:
    return {"worker": workers, "server": servers}


def founded() -> MembershipHistory:
    """Of four workers and three servers."""
    losses = MembershipHistory()
    losses.changed(left(4), change_s=0.1)
    return losses


def test_one_loss_in_one_sentence_whatever_is_heard_first() -> None:
    def told() -> MembershipHistory:
        losses = founded()
        losses.known(("worker", 2), 100.11, "it has exited")
        return losses

    for order in permutations(range(3)):
        losses = told()
        news = (
            lambda losses=losses: losses.ended(("worker", 2), 100.0),
            lambda losses=losses: losses.changed(left(3), change_s=0.02),
            lambda losses=losses: losses.short(812, [2]),
        )
        for number in order:
            news[number]()
        assert list(map(str, losses.found)) == [
            "3 of 4 workers from iteration 812: worker 2 lost, found after 0.11 s, one iteration finished without it"
        ]


def test_a_lost_server_in_one_sentence() -> None:
    losses = founded()
    losses.ended(("server", 1), 100.0)
    losses.known(("server", 1), 100.11, "it has exited")
    losses.changed(left(4, servers=2), change_s=0.04)
    losses.short(5, [1])  # a worker of the same number
    assert list(map(str, losses.found)) == [
        "2 of 3 servers: server 1 lost, found after 0.11 s, its sums moved after 0.04 s"
    ]
    assert (losses.lost("worker"), losses.lost("server")) == (frozenset(), {1})


def test_a_host_with_a_worker_and_servers_is_one_loss_of_each_kind() -> None:
    losses = founded()
    for lost in (("worker", 1), ("server", 1), ("server", 2)):
        losses.known(lost, 100.0, "it has exited")
    losses.changed(left(3, servers=1), change_s=0.04)
    losses.short(5, [1])
    assert list(map(str, losses.found)) == [
        "3 of 4 workers from iteration 5: worker 1 lost, one iteration finished without it",
        "1 of 3 servers: servers 1, 2 lost, their sums moved after 0.04 s",
    ]
    assert losses.lost("worker") == {1}


def test_the_coordinator_may_know_before_the_launcher() -> None:
    losses = founded()
    losses.known(("worker", 1), 9.9, "its connections to 2 processes closed")
    losses.changed(left(3), change_s=0.02)
    losses.ended(("worker", 1), 10.0)
    assert str(losses.found[0]) == "3 of 4 workers: worker 1 lost, found at once, no iterations finished without it"


def test_prefetched_iterations_are_counted_and_losses_at_once_are_one_change() -> None:
    losses = founded()
    for rank in (0, 3):
        losses.ended(("worker", rank), 10.0)
        losses.known(("worker", rank), 10.5, "it has exited")
    losses.changed(left(2), change_s=0.02)
    for iteration in (7, 8, 9, 7):
        losses.short(iteration, [0, 3])
    assert [str(loss) for loss in losses.found] == [
        "2 of 4 workers from iteration 7: workers 0, 3 lost, found after 0.50 s, 3 iterations finished without them"
    ]
    assert losses.lost("worker") == {0, 3}


def test_later_losses_are_changes_of_their_own() -> None:
    losses = founded()
    for there, rank in ((3, 1), (2, 2)):
        losses.known(("worker", rank), 10.0, "its connection closed")
        losses.changed(left(there), 0.02)
        losses.short(100 * rank, [rank])
    assert [str(loss) for loss in losses.found] == [
        "3 of 4 workers from iteration 100: worker 1 lost, one iteration finished without it",
        "2 of 4 workers from iteration 200: worker 2 lost, one iteration finished without it",
    ]


def test_that_the_others_waited_for_another_one_is_told_of_this_loss_alone() -> None:
    losses = founded()
    for rank in (1, 2):
        losses.known(("worker", rank), 10.0, "it has exited")
        losses.too_few = "2 are left, elastic.min_workers is 3" if rank == 1 else None
        losses.changed(left(4 - rank), 8.125)
        assert losses.too_few is None
    assert [str(loss) for loss in losses.found] == [
        "3 of 4 workers: worker 1 lost, the others waited 8.12 s for another one, no iterations finished without it",
        "2 of 4 workers: worker 2 lost, no iterations finished without it",
    ]


def test_before_the_members_have_met_nobody_goes_on() -> None:
    losses = MembershipHistory()
    losses.known(("worker", 1), 10.0, "it has exited")
    assert not losses.founded
    assert losses.found == []


def test_who_leaves_is_told_by_the_iteration() -> None:
    losses = founded()
    losses.departed(2, 812, left=3)
    for rank in (3, 0):
        losses.departed(rank, 1900, left=1)
    assert [str(one) for one in losses.departures] == [
        "3 of 4 workers from iteration 812: worker 2 left",
        "1 of 4 workers from iteration 1,900: workers 0, 3 left",
    ]
    assert losses.left == {0, 2, 3}
    assert not losses.lost("worker") and not losses.found


def test_others_enter_in_the_places_of_lost_workers_and_are_lost_again() -> None:
    losses = founded()
    losses.known(("worker", 2), 100.1, "it has exited")
    losses.ended(("worker", 2), 100.0)
    losses.changed(left(3), change_s=0.1)
    losses.short(812, [2])
    assert losses.lost("worker") == {2}
    losses.entered([2], first_iteration=900, there=4)
    assert losses.lost("worker") == frozenset()
    losses.known(("worker", 2), 200.5, "it has exited")
    losses.ended(("worker", 2), 200.0)
    losses.changed(left(3), change_s=0.1)
    losses.short(950, [2])
    losses.short(951, [2])
    assert losses.lost("worker") == {2}
    assert list(map(str, losses.found)) == [
        "3 of 4 workers from iteration 812: worker 2 lost, found after 0.10 s, one iteration finished without it",
        "3 of 4 workers from iteration 950: worker 2 lost, found after 0.50 s, 2 iterations finished without it",
    ]
    assert list(map(str, losses.arrivals)) == ["4 of 4 workers from iteration 900: worker 2 entered"]


def test_a_server_enters_in_the_place_of_one_that_is_lost() -> None:
    losses = founded()
    losses.known(("server", 1), 100.1, "it has exited", "start-0")
    losses.changed(left(4, servers=2), change_s=0.1)
    assert losses.lost("server") == {1}
    losses.servers_entered([1], first_iteration=900)
    assert losses.lost("server") == frozenset()
    assert losses.incarnations == {(("server", 1), "start-0")}, "which is lost for ever"
    assert list(map(str, losses.arrivals)) == ["3 of 3 servers from iteration 900: server 1 entered"]


def test_a_worker_enters_in_the_place_of_one_that_left() -> None:
    losses = founded()
    losses.departed(1, 40, 3)
    assert losses.left == {1}
    losses.entered([1], first_iteration=60, there=4)
    assert losses.left == frozenset()
    losses.departed(1, 80, 3)
    assert losses.left == {1}


def test_who_is_lost_while_the_members_meet_counts_among_those_that_began() -> None:
    losses = MembershipHistory()
    losses.known(("worker", 1), 10.0, "it has exited")
    losses.changed(left(3), 0.02)
    assert str(losses.found[0]).startswith("3 of 4 workers: worker 1 lost")


def test_a_job_may_grow() -> None:
    losses = founded()
    losses.entered([4], 50, 5)
    losses.departed(0, 70, 4)
    assert list(map(str, losses.arrivals)) == ["5 of 5 workers from iteration 50: worker 4 entered"]
    assert list(map(str, losses.departures)) == ["4 of 5 workers from iteration 70: worker 0 left"]
