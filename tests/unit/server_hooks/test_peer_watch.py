"""A role that was left alone notices; one whose peers are there, or have not come yet, waits."""

from __future__ import annotations

import pytest

from dynamix_ps.metrics.network.own_sockets import OwnSockets
from server_hooks.peer_watch import Absence, Peers, endpoints_of, peers_of

ROOT, ARBITRATOR, ME = "10.0.0.1:9000", "10.0.0.1:9001", "10.0.0.2"


def test_connections_are_sorted_into_scheduler_workers_and_the_rest() -> None:
    sockets = OwnSockets(
        listening=frozenset({7000}),
        connected=frozenset(
            {
                (f"{ME}:40000", ROOT),
                (f"{ME}:40001", "10.0.0.3:7100"),  # a worker
                (f"{ME}:40002", "10.0.0.4:7100"),  # another
                (f"{ME}:7000", "10.0.0.3:50000"),  # the first worker's own connection
                (f"{ME}:7000", f"{ME}:40003"),  # to itself
                (f"{ME}:40003", f"{ME}:7000"),
                (f"{ME}:40004", ARBITRATOR),
            }
        ),
    )
    assert peers_of(sockets, {ROOT}, {ARBITRATOR}) == Peers(scheduler=True, dialled=2, accepted=1)


NOBODY = Peers(False, 0, 0)


@pytest.mark.parametrize(
    ("role", "before", "now", "alone"),
    [
        ("server", Peers(True, 2, 2), Peers(True, 0, 1), True),  # all workers gone, the scheduler waits too
        ("server", Peers(True, 0, 0), Peers(True, 0, 1, left=2), True),  # they came and went between two checks
        ("server", Peers(True, 2, 2), Peers(True, 1, 2), False),  # one worker is left
        ("server", Peers(True, 2, 2), Peers(False, 2, 2), False),  # training goes on without the scheduler
        ("server", NOBODY, NOBODY, False),  # the scheduler has not come yet
        ("server", Peers(True, 0, 0), Peers(True, 0, 0), False),  # the workers have not come yet
        ("server", Peers(True, 0, 0), NOBODY, True),  # the scheduler is gone before the workers came
        ("scheduler", Peers(False, 3, 3), NOBODY, True),
        ("scheduler", Peers(False, 0, 2), Peers(False, 0, 1), False),
        ("scheduler", Peers(False, 0, 2), NOBODY, True),
        ("scheduler", NOBODY, NOBODY, False),
    ],
)
def test_who_is_alone(role: str, before: Peers, now: Peers, alone: bool) -> None:
    absence = Absence(role)
    assert absence.see(0.0, before) == 0.0
    absence.see(1.0, now)
    assert absence.see(31.0, now) == (30.0 if alone else 0.0)


def test_one_that_comes_back_ends_the_absence() -> None:
    absence = Absence("server")
    for now_s, dialled in ((0.0, 2), (1.0, 0), (5.0, 1), (6.0, 0)):
        absence.see(now_s, Peers(True, dialled, 0))
    assert absence.see(16.0, Peers(True, 0, 0)) == 10.0


def test_an_address_that_cannot_be_resolved_is_no_peer() -> None:
    assert endpoints_of("") == endpoints_of("no.such.host.invalid:1") == set()
    assert endpoints_of("[::1]:5") == {"[::1]:5"}
