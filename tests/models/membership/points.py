"""Faults at every point of a round, alone and in pairs, for the model of membership."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dynamix_ps.membership.data_messages import Answer, Sum
from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.messages import Fence, Freeze, Process, Resume
from dynamix_ps.membership.worker import Worker
from tests.models.membership.faults import disturbances
from tests.models.membership.world import Job, World

ROUND = 2  # in which faults happen
KEYS = 3
_KEYS_OF_SERVER_0 = 2

Strike = Callable[[World, random.Random], bool]  # True once the fault has happened, or cannot


@dataclass(frozen=True, slots=True)
class Point:
    """A moment at which somebody dies.

    Attributes:
        comes: it is one of a worker that comes in ROUND.
    """

    name: str
    strike: Strike
    comes: bool = False


def worker_point(slot: int, name: str, reached: Callable[[Worker], bool]) -> Point:
    """The founder of this slot dies when it has `reached` it, in ROUND or in the change after it."""

    def strike(world: World, rng: random.Random) -> bool:
        process = Process("worker", slot, "first")
        worker = world.workers[process]
        if not world.alive(process) or worker.round > ROUND + 1:
            return True
        if worker.schedule is None or not reached(worker):
            return False
        world.kill(process, rng.choice(("exit", "closed", "silent")))
        return True

    return Point(f"worker {slot} {name}", strike)


def newcomer_point(name: str, reached: Callable[[World, Worker], bool], who: str) -> Point:
    """`who`: the newcomer, the giver, which is the worker that it follows, or another one."""

    def strike(world: World, rng: random.Random) -> bool:
        newcomer = next((one for one in world.workers.values() if one.process.incarnation != "first"), None)
        if newcomer is None:
            if any(worker.round >= ROUND for worker in world.training):
                world.start_worker(world.newcomer("worker"))
            return False
        if not world.alive(newcomer.process) or not world.training:
            return True
        if not reached(world, newcomer):
            return False
        process = _WHO[who](world, newcomer).process
        if world.alive(process):
            world.kill(process, rng.choice(("exit", "closed", "silent")))
        return True

    return Point(f"{who} when the newcomer {name}", strike, comes=True)


def _giver(world: World, newcomer: Worker) -> Worker:
    """Whom it follows, or would follow: the worker that leads."""
    if newcomer._follower.followed is not None:
        return world.workers[newcomer._follower.followed.worker]
    return min(world.training, key=lambda worker: worker.process)


def _another(world: World, newcomer: Worker) -> Worker:
    others = [worker for worker in world.training if worker is not newcomer]
    return max(others, key=lambda worker: worker.process, default=newcomer)


_WHO: Mapping[str, Callable[[World, Worker], Worker]] = {
    "newcomer": lambda world, newcomer: newcomer,
    "giver": _giver,
    "another": _another,
}


def _has_caught_up(world: World, newcomer: Worker) -> bool:
    """It may be voted in."""
    has_copy = newcomer._follower.followed is not None
    return has_copy and _giver(world, newcomer)._followers.here.get(newcomer.process, False)


def is_voted_in(world: World, newcomer: Worker) -> bool:
    """Others wait for it, and it has not heard of it."""
    here = newcomer.process
    return newcomer.schedule is None and any(here in one.schedule.workers[0] for one in world.training if one.schedule)


_FOLLOWING: Mapping[str, Callable[[World, Worker], bool]] = {
    "has joined": lambda world, one: one.schedule is None and one._follower.followed is None,
    "has its copy": lambda world, one: one.schedule is None and one._follower.followed is not None,
    "has caught up": _has_caught_up,
    "is voted in": is_voted_in,
}
_ENTERED: Mapping[str, Callable[[World, Worker], bool]] = {
    "has entered": lambda world, one: one.schedule is not None and one.current.pushed == 0,
    "has pushed a part": lambda world, one: one.schedule is not None and one.current.pushed in (1, 2),
    "has pushed its first round": lambda world, one: one.schedule is not None and one.current.pushed == KEYS,
}


def _server_point(name: str, reached: Callable[[Sequence[Sum]], bool], answered: Sequence[int]) -> Point:
    """`answered`: slots of the workers that still get the answers of the round."""

    def keep(receiver: Process, message: Any) -> bool:
        return receiver.slot in answered or not isinstance(message, Answer) or message.round < ROUND

    def strike(world: World, rng: random.Random) -> bool:
        process = Process("server", 0, "first")
        if not world.alive(process):
            return True
        if not reached([sum_ for sum_ in world.servers[process].sums.values() if sum_.round == ROUND]):
            return False
        world.kill(process, rng.choice(("exit", "closed", "silent")), keep)
        return True

    return Point(f"server {name}", strike)


def _all_complete(sums: Sequence[Sum]) -> bool:
    return len(sums) == _KEYS_OF_SERVER_0 and all(sum_.complete for sum_ in sums)


def coordinator_point(kind: type[Any], sent: int) -> Point:
    """It dies after `sent` messages of an output with such messages, and restarts."""

    def truncate(output: Output) -> int | None:
        return sent if any(isinstance(message, kind) for _, message in output.messages) else None

    def strike(world: World, rng: random.Random) -> bool:
        founded = any(worker.round >= ROUND for worker in world.training)
        if founded:
            world.truncate = truncate
        return founded

    return Point(f"coordinator after {sent} {kind.__name__}", strike)


IN_ROUND: Mapping[str, Callable[[Worker], bool]] = {
    "before pushes": lambda worker: worker.round == ROUND and worker.current.pushed == 0,
    "between pushes": lambda worker: worker.round == ROUND and worker.current.pushed in (1, 2),
    "after pushes": lambda worker: worker.round == ROUND and worker.current.pushed == KEYS,
    "after the first answer": lambda worker: worker.round == ROUND and len(worker.current.answers) == 1,
    "before the last answer": lambda worker: worker.round == ROUND and len(worker.current.answers) == 2,
    "after the step": lambda worker: worker.round == ROUND + 1,
}


@dataclass(frozen=True, slots=True)
class PointSet:
    """The points of one kind of job.

    Attributes:
        job: in which they are.
        longer: in which workers come, so that they can enter.
        points: somebody dies at each of them alone, and at each pair.
        others: one of these happens besides, by the seed.
    """

    job: Job
    longer: Job
    points: tuple[Point, ...]
    others: tuple[Mapping[str, int], ...]

    def all(self) -> Iterator[tuple[Point, ...]]:
        """Each point alone, and each pair."""
        yield from ((point,) for point in self.points)
        yield from combinations(self.points, 2)

    def run(self, points: Sequence[Point], seed: int) -> Mapping[str, int]:
        """One job with faults at these points. Returns what happened.

        Raises:
            Violation, ProtocolError, WrongPush: an invariant does not hold, or somebody is stuck.
        """
        rng = random.Random(f"points {seed}")
        left = list(points)
        other = disturbances(rng, self.others[seed % len(self.others)], chance=0.03)

        def disturb(world: World) -> None:
            other(world)
            left[:] = [point for point in left if not point.strike(world, rng)]

        world = World(self.longer if any(point.comes for point in points) else self.job, seed)
        world.run(disturb)
        return vars(world.counts)


_POINTS: tuple[Point, ...] = (
    *(worker_point(slot, name, reached) for slot in (0, 1) for name, reached in IN_ROUND.items()),
    _server_point("with a part of a sum", lambda sums: any(not sum_.complete for sum_ in sums), ()),
    _server_point("with a sum that nobody gets", _all_complete, ()),
    _server_point("with a sum that worker 2 gets", _all_complete, (2,)),
    *(coordinator_point(kind, sent) for kind in (Freeze, Fence, Resume) for sent in range(4)),
    *(newcomer_point(name, reached, "newcomer") for name, reached in {**_FOLLOWING, **_ENTERED}.items()),
    *(newcomer_point(name, reached, "giver") for name, reached in _FOLLOWING.items()),
)
WITH_SERVERS = PointSet(
    Job(4, 2, keys=KEYS, rounds=5),
    Job(4, 2, keys=KEYS, rounds=9),
    _POINTS,
    ({}, {"leave": 1}, {"join": 1}, {"slow answers": 1}),
)
