"""Faults at every point of a round of a ring, and of the change after it, alone and in pairs, for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynamix_ps.membership.messages import Freeze, Resume
from dynamix_ps.membership.worker import Worker
from tests.models.membership.points import IN_ROUND, KEYS, PointSet, coordinator_point, worker_point
from tests.models.membership.ring import RingWorker
from tests.models.membership.ring_messages import Ring
from tests.models.membership.world import Job


def _in_next(reached: Callable[[RingWorker, Ring], bool]) -> Callable[[Worker], bool]:
    """Whether a worker is in the ring of a change, and has reached this."""

    def check(worker: Worker) -> bool:
        assert isinstance(worker, RingWorker)
        ring = worker._ring
        return ring is not None and ring.generation > 1 and reached(worker, ring)

    return check


_IN_CHANGE: Mapping[str, Callable[[Worker], bool]] = {
    "has named its round": lambda worker: worker.frozen,
    "waits for the next ring": _in_next(lambda worker, ring: not worker._has_met(ring)),
    "is behind in the next ring": _in_next(
        lambda worker, ring: worker._has_met(ring) and worker.round < ring.first_round
    ),
    "makes the round anew": _in_next(lambda worker, ring: worker._has_met(ring) and worker.round == ring.first_round),
}
_JOB = Job(4, 0, keys=KEYS, rounds=5, worker_class=RingWorker)
RING = PointSet(
    _JOB,
    _JOB,
    (
        *(worker_point(slot, name, reached) for slot in (0, 1) for name, reached in {**IN_ROUND, **_IN_CHANGE}.items()),
        *(coordinator_point(kind, sent) for kind in (Freeze, Resume) for sent in range(4)),
    ),
    ({}, {"leave": 1}, {"restart": 1}, {"reconnect": 1}),
)
