"""Faults at every point of a round, of the change after it and of an entry, alone and in pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.messages import Freeze, MayPush, Process, Resume
from tests.models.membership.faults import disturbances
from tests.models.membership.job import Job
from tests.models.membership.pieces import Answer
from tests.models.membership.planes import RingPlane
from tests.models.membership.processes import WorkerProcess
from tests.models.membership.trainer import Phase
from tests.models.membership.world import World

ROUND = 2  # in which faults happen

Strike = Callable[[World, random.Random], bool]  # True once the fault has happened, or cannot
Reached = Callable[[WorkerProcess], bool]


@dataclass(frozen=True, slots=True)
class Point:
    """A moment at which somebody dies.

    Attributes:
        comes: it is one of a worker that comes in ROUND.
    """

    name: str
    strike: Strike
    comes: bool = False


def _missing(worker: WorkerProcess) -> int:
    """Sums of the open round that have not come."""
    if isinstance(worker.plane, RingPlane):
        return worker.trainer.pushed - len(worker.plane._sums)
    return sum(worker.plane.exchange.status().missing.values())


_IN_ROUND: Mapping[str, Reached] = {
    "before its pushes": lambda one: one.trainer.phase is Phase.ADMIT,
    "between pushes": lambda one: one.trainer.pushed == 1,
    "after its pushes": lambda one: one.trainer.phase is Phase.WAIT,
    "before the last answer": lambda one: one.trainer.phase is Phase.WAIT and _missing(one) == 1,
    "when its round is complete": lambda one: one.trainer.phase is Phase.SUMMED,
    "before its step": lambda one: one.trainer.phase is Phase.LEARNT,
}
_IN_CHANGE: Mapping[str, Reached] = {
    "when it has named its round": lambda one: one.core._frozen > one.core.generation,
    "when it has resumed": lambda one: one.core.generation > 1,
}
_IN_RING: Mapping[str, Reached] = {
    "while a ring is made": lambda one: isinstance(one.plane, RingPlane) and one.plane.core.making is not None,
    "while kept sums are sent": lambda one: isinstance(one.plane, RingPlane) and bool(one.plane._spreading),
}


def _worker_point(slot: int, name: str, reached: Reached) -> Point:
    """The founder of this slot dies when it has `reached` it, in ROUND or in the change after it."""

    def strike(world: World, rng: random.Random) -> bool:
        process = Process("worker", slot, "first")
        worker = world.workers[process]
        if not world.alive(process) or worker.trainer.round > ROUND + 1:
            return True
        if worker.trainer.round < ROUND or not reached(worker):
            return False
        world.kill(process, rng.choice(("exit", "closed", "silent")))
        return True

    return Point(f"worker {slot} {name}", strike)


def _server_point(name: str, complete: bool, answered: Sequence[int]) -> Point:
    """Server 0 dies with a part of a sum, or with complete sums of which only workers `answered` get the answers."""

    def keep(receiver: Process, message: Any) -> bool:
        return receiver.slot in answered or not isinstance(message, Answer) or message.round < ROUND

    def strike(world: World, rng: random.Random) -> bool:
        process = Process("server", 0, "first")
        if not world.alive(process):
            return True
        sums = list(world.servers[process].table._sums.values())
        has_part = any(one.round == ROUND and one.parts for one in sums)
        is_complete = bool(sums) and all(one.round == ROUND + 1 and not one.parts for one in sums)
        if not (is_complete if complete else has_part):
            return False
        world.kill(process, rng.choice(("exit", "closed", "silent")), keep)
        return True

    return Point(f"server {name}", strike)


def _coordinator_point(kind: type[Any], sent: int) -> Point:
    """It dies after `sent` messages of an output with such messages, and restarts."""

    def truncate(output: Output) -> int | None:
        return sent if any(isinstance(message, kind) for _, message in output.messages) else None

    def strike(world: World, rng: random.Random) -> bool:
        begun = any(worker.trainer.round >= ROUND for worker in world.training)
        if begun:
            world.truncate = truncate
        return begun

    return Point(f"coordinator after {sent} {kind.__name__}", strike)


def _newcomer_point(name: str, reached: Callable[[World, WorkerProcess], bool], who: str) -> Point:
    """`who`: the newcomer, the giver, which gives it the state, or another one."""

    def strike(world: World, rng: random.Random) -> bool:
        newcomer = next((one for one in world.workers.values() if not one.trainer.is_founder), None)
        if newcomer is None:
            if any(worker.trainer.round >= ROUND for worker in world.training) and (one := world.newcomer("worker")):
                world.start_worker(one)
            return False
        if not world.alive(newcomer.core.known.own) or not world.training:
            return True
        if not reached(world, newcomer):
            return False
        process = _WHO[who](world, newcomer).core.known.own
        if world.alive(process):
            world.kill(process, rng.choice(("exit", "closed", "silent")))
        return True

    return Point(f"{who} when the newcomer {name}", strike, comes=True)


def _giver(world: World, newcomer: WorkerProcess) -> WorkerProcess:
    """Who gives it the state, or would: the worker that leads."""
    if newcomer.trainer.giver is not None:
        return world.workers[newcomer.trainer.giver]
    return min(world.training, key=lambda worker: worker.core.known.own)


def _another(world: World, newcomer: WorkerProcess) -> WorkerProcess:
    others = [worker for worker in world.training if worker is not newcomer]
    return max(others, key=lambda worker: worker.core.known.own, default=newcomer)


_WHO: Mapping[str, Callable[[World, WorkerProcess], WorkerProcess]] = {
    "newcomer": lambda world, newcomer: newcomer,
    "giver": _giver,
    "another": _another,
}


def _is_voted_in(world: World, newcomer: WorkerProcess) -> bool:
    """Others wait for it, and it has not heard of it."""
    own = newcomer.core.known.own
    return newcomer.core.known.is_late and any(own in one.core.known.planned.values() for one in world.training)


_ENTERING: Mapping[str, Callable[[World, WorkerProcess], bool]] = {
    "has joined": lambda world, one: one.trainer.phase is Phase.BEGIN and one.core.generation > 0,
    "has its copy": lambda world, one: one.trainer.giver is not None and one.core.known.is_late,
    "has followed a round": lambda world, one: one.trainer.followed > 0,
    "is voted in": _is_voted_in,
    "begins": lambda world, one: one.trainer.phase is Phase.ENTER,
    "has entered": lambda world, one: one.trainer.has_state and one.trainer.pushed == 0,
    "has pushed a part": lambda world, one: one.trainer.has_state and one.trainer.pushed == 1,
    "has pushed its first round": lambda world, one: one.trainer.has_state and one.trainer.phase is Phase.WAIT,
}


@dataclass(frozen=True, slots=True)
class PointSet:
    """The points of one kind of job.

    Attributes:
        job: in which they are.
        points: somebody dies at each of them alone, and at each pair.
        others: one of these happens besides, by the seed.
    """

    job: Job
    points: tuple[Point, ...]
    others: tuple[Mapping[str, int], ...]

    def singles(self) -> Iterator[tuple[Point, ...]]:
        """Each point alone."""
        yield from ((point,) for point in self.points)

    def pairs(self) -> Iterator[tuple[Point, ...]]:
        """Each pair."""
        yield from combinations(self.points, 2)

    def run(self, points: Sequence[Point], seed: int) -> Mapping[str, int]:
        """One job with faults at these points. Returns what happened; raises what went wrong."""
        rng = random.Random(f"points {seed}")
        left = list(points)
        other = disturbances(rng, self.others[seed % len(self.others)], chance=0.03)

        def disturb(world: World) -> None:
            other(world)
            left[:] = [point for point in left if not point.strike(world, rng)]

        world = World(self.job, seed)
        world.run(disturb)
        return vars(world.counts)


_WORKERS = tuple(
    _worker_point(slot, name, reached) for slot in (0, 1) for name, reached in {**_IN_ROUND, **_IN_CHANGE}.items()
)
_COORDINATOR = tuple(_coordinator_point(kind, sent) for kind in (Freeze, MayPush, Resume) for sent in range(4))
_NEWCOMER = tuple(
    _newcomer_point(name, reached, who)
    for name, reached in _ENTERING.items()
    for who in ("newcomer", "giver", "another")
)
POINT_SETS: Mapping[str, PointSet] = {
    "over servers": PointSet(
        Job(5, 2, rounds=9),
        (
            *_WORKERS,
            _server_point("with a part of a sum", False, ()),
            _server_point("with a sum that nobody gets", True, ()),
            _server_point("with a sum that two workers get", True, (2, 3)),
            *_COORDINATOR,
            *_NEWCOMER,
        ),
        ({}, {"leave": 1}, {"join": 1}, {"slow answers": 1}),
    ),
    "in a ring": PointSet(
        Job(5, 0, rounds=9),
        (
            *_WORKERS,
            *(_worker_point(slot, name, reached) for slot in (0, 1) for name, reached in _IN_RING.items()),
            *_COORDINATOR,
            *_NEWCOMER,
        ),
        ({}, {"leave": 1}, {"join": 1}, {"reconnect": 2}),
    ),
}
