"""Faults at every point of a round, alone and in pairs, for the model of membership."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from benchmarks.studies.membership_faults import disturbances
from benchmarks.studies.membership_world import Job, World
from dynamix_ps.membership.data_messages import Answer, Sum
from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.messages import Fence, Freeze, Process, Resume
from dynamix_ps.membership.worker import Worker

ROUND = 2  # in which faults happen
JOB = Job(4, 2, keys=3, rounds=5)
_KEYS_OF_SERVER_0 = 2

Strike = Callable[[World, random.Random], bool]  # True once the fault has happened, or cannot


@dataclass(frozen=True, slots=True)
class Point:
    """A moment at which somebody dies."""

    name: str
    strike: Strike


def _worker_point(slot: int, name: str, reached: Callable[[Worker], bool]) -> Point:
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


def _coordinator_point(kind: type[Any], sent: int) -> Point:
    """It dies after `sent` messages of an output with such messages, and restarts."""

    def truncate(output: Output) -> int | None:
        return sent if any(isinstance(message, kind) for _, message in output.messages) else None

    def strike(world: World, rng: random.Random) -> bool:
        founded = any(worker.round >= ROUND for worker in world.training)
        if founded:
            world.truncate = truncate
        return founded

    return Point(f"coordinator after {sent} {kind.__name__}", strike)


POINTS: tuple[Point, ...] = (
    *(
        _worker_point(slot, name, reached)
        for slot in (0, 1)
        for name, reached in {
            "before pushes": lambda worker: worker.round == ROUND and worker.current.pushed == 0,
            "between pushes": lambda worker: worker.round == ROUND and worker.current.pushed in (1, 2),
            "after pushes": lambda worker: worker.round == ROUND and worker.current.pushed == JOB.keys,
            "after the first answer": lambda worker: worker.round == ROUND and len(worker.current.answers) == 1,
            "before the last answer": lambda worker: worker.round == ROUND and len(worker.current.answers) == 2,
            "after the step": lambda worker: worker.round == ROUND + 1,
        }.items()
    ),
    _server_point("with a part of a sum", lambda sums: any(not sum_.complete for sum_ in sums), ()),
    _server_point("with a sum that nobody gets", _all_complete, ()),
    _server_point("with a sum that worker 2 gets", _all_complete, (2,)),
    *(_coordinator_point(kind, sent) for kind in (Freeze, Fence, Resume) for sent in range(4)),
)
PAIRS = tuple(combinations(POINTS, 2))
OTHERS: tuple[Mapping[str, int], ...] = ({}, {"leave": 1}, {"join": 1}, {"slow answers": 1})


def run_points(points: Sequence[Point], seed: int) -> Mapping[str, int]:
    """One job in which these faults happen, and by the seed a worker leaves, or joins, or gets answers late.

    Raises:
        Violation, ProtocolError, WrongPush: an invariant does not hold, or somebody is stuck.
    """
    rng = random.Random(f"points {seed}")
    left = list(points)
    other = disturbances(rng, OTHERS[seed % len(OTHERS)], chance=0.03)

    def disturb(world: World) -> None:
        other(world)
        left[:] = [point for point in left if not point.strike(world, rng)]

    world = World(JOB, seed)
    world.run(disturb)
    return vars(world.counts)


def all_points() -> Iterator[tuple[Point, ...]]:
    """Each point alone, and each pair."""
    yield from ((point,) for point in POINTS)
    yield from PAIRS
