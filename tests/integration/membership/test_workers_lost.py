"""Workers and servers are killed, and the sums of the others go on: over real processes, checked value by value.

lossy_job.py says how, and runs many such jobs. What the servers and workers do then is played much more often, and
in any order, by tests/unit/byteps_build/test_elastic.py.
"""

from __future__ import annotations

import pytest

from tests.integration.membership.lossy_job import ROUNDS, Job, Story

pytestmark = pytest.mark.timeout(120)

NAMED = Story(
    workers=5,
    wire="bf16",
    kills_after_s=(),
    deaths=((3, 5, "between-pushes"), (1, 20, "after-first-answer"), (4, 35, "after-pushes")),
    in_decision=(("resuming", "worker-2"),),
    stops=((0.2, 0, 0.2),),
    forks=True,
)


def test_each_loss_costs_nobody_a_round() -> None:
    with Job(NAMED) as job:
        outcome = job.run()
    assert not outcome.wrong
    assert sorted(outcome.lost) == [1, 2, 3, 4] and outcome.decisions >= 3


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_random_losses(seed: int) -> None:
    with Job(Story.random(seed)) as job:
        outcome = job.run()
    assert not outcome.wrong
    assert outcome.lost


def test_without_losses_all_contribute_to_all_rounds() -> None:
    with Job(Story(3, "float32", (), (), (), ())) as job:
        outcome = job.run()
    assert (outcome.wrong, outcome.lost, outcome.decisions) == ([], [], 0) and ROUNDS > 1


SERVERS_LOST = Story(
    workers=4,
    wire="int8",
    kills_after_s=((0.1, "server-0"),),
    deaths=((2, 30, "between-pushes"),),
    in_decision=(("fencing", "server-2"),),
    stops=((0.1, 1, 0.2), (0.4, 3, 0.2)),
)


def test_the_last_server_makes_the_sums_of_the_others() -> None:
    with Job(SERVERS_LOST) as job:
        outcome = job.run()
    assert not outcome.wrong
    assert sorted(outcome.lost_servers) == [0, 2]
    assert sorted(outcome.lost) == sorted({2, *outcome.cut_off}), "2 may be cut off before it dies"
