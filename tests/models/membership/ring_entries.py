"""Somebody dies at every stage of the entry of a worker into a ring, for the model of membership."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from dynamix_ps.membership.worker import Worker
from tests.models.membership.points import KEYS, PointSet, is_voted_in, newcomer_point
from tests.models.membership.ring import RingWorker
from tests.models.membership.world import Job, World

_JOB = Job(4, 0, keys=KEYS, rounds=9, worker_class=RingWorker)
Stage = Callable[[World, Worker], bool]


def _is_taken_in(world: World, newcomer: Worker) -> bool:
    """A worker has taken it in, and it has no state yet."""
    taken = any(newcomer.process in cast(RingWorker, one)._planned for one in world.training)
    return newcomer.schedule is None and taken


def _has_met(newcomer: Worker) -> bool:
    ring = cast(RingWorker, newcomer)._ring
    return ring is not None and cast(RingWorker, newcomer)._has_met(ring)


_STAGES: Mapping[str, Stage] = {
    "has joined": lambda world, one: one.schedule is None,
    "is voted in": is_voted_in,
    "is taken in": _is_taken_in,
    "has the state": lambda world, one: one.schedule is not None and not _has_met(one),
    "is in a ring": lambda world, one: one.schedule is not None and _has_met(one) and one.current.pushed == 0,
    "has pushed its first round": lambda world, one: one.current.pushed == KEYS and one.to_name is None,
    "has completed a round": lambda world, one: one.to_name is not None,
}
ENTERING = PointSet(
    _JOB,
    _JOB,
    tuple(
        newcomer_point(name, reached, who)
        for who in ("newcomer", "giver", "another")
        for name, reached in _STAGES.items()
    ),
    ({}, {"leave": 1}, {"restart": 1}, {"slow answers": 1}),
)
