"""Faults for the model of membership, at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dynamix_ps.membership.messages import COORDINATOR
from dynamix_ps.membership.worker import Worker
from tests.models.membership.world import World


def disturbances(rng: random.Random, plan: Mapping[str, int], chance: float = 0.01) -> Callable[[World], None]:
    """Faults at random moments.

    Args:
        plan: how many of `kill worker`, `kill server`, `leave`, `leave together`, `join`, `join server`, `restart`,
            `partition`, `heal`, `slow answers`, `slow offers`, `reconnect`.
    """
    left = [kind for kind, count in plan.items() for _ in range(count)]
    rng.shuffle(left)

    def disturb(world: World) -> None:
        if left and rng.random() < chance:
            _FAULTS[left.pop()](world, rng)

    return disturb


def _staying(world: World) -> list[Worker]:
    """Those of whom one must be left, or the job has lost its state."""
    there = [w for w in world.training if w.to_name is not None and w.process not in world.network.blocked]
    return [w for w in there if not w.last and not w.leaving]


def _kill_worker(world: World, rng: random.Random) -> None:
    staying = _staying(world)
    candidates = [process for process in world.workers if world.alive(process)]
    if len(staying) < 2:
        candidates = [process for process in candidates if process not in {w.process for w in staying}]
    if candidates:
        world.kill(rng.choice(candidates), rng.choice(("exit", "closed", "silent")))


def _kill_server(world: World, rng: random.Random) -> None:
    usable = [process for process in world.servers if world.alive(process) and process not in world.network.blocked]
    if len(usable) > 1:
        world.kill(rng.choice(usable), rng.choice(("exit", "closed", "silent")))


def _leave(world: World, rng: random.Random) -> None:
    staying = [w for w in world.training if w.to_name is not None and not w.last and not w.leaving]
    if len(staying) > 1:
        rng.choice(staying).leaving = True


def _leave_together(world: World, rng: random.Random) -> None:
    """All want to leave, so one must stay until the end."""
    for worker in world.training:
        worker.leaving = True


def _join(world: World, rng: random.Random) -> None:
    if world.coordinator.members.founded:
        world.start_worker(world.newcomer("worker"))


def _join_server(world: World, rng: random.Random) -> None:
    if world.coordinator.members.founded:
        world.start_server(world.newcomer("server"))


def _restart(world: World, rng: random.Random) -> None:
    world.restart_coordinator()


def _partition(world: World, rng: random.Random) -> None:
    staying = _staying(world)
    if len(staying) > 1:
        world.network.block(rng.choice(staying).process, coordinator_only=rng.random() < 0.5)


def _heal(world: World, rng: random.Random) -> None:
    if world.network.blocked:
        world.network.unblock(rng.choice(world.network.blocked))


def _slow_answers(world: World, rng: random.Random) -> None:
    """Of one server to one worker, until nothing else can happen; in a ring, of one worker to another."""
    world.network.hold(rng.choice(sorted(world.servers or world.workers)), rng.choice(sorted(world.workers)))


def _slow_offers(world: World, rng: random.Random) -> None:
    """The coordinator's messages to a newcomer come late."""
    newcomers = [process for process, worker in world.workers.items() if worker.schedule is None]
    if newcomers:
        world.network.hold(COORDINATOR, rng.choice(sorted(newcomers)))


def _reconnect(world: World, rng: random.Random) -> None:
    world.reconnect(rng.choice([*world.workers, *world.servers]))


_FAULTS: Mapping[str, Callable[[World, random.Random], None]] = {
    "kill worker": _kill_worker,
    "kill server": _kill_server,
    "leave": _leave,
    "leave together": _leave_together,
    "join": _join,
    "join server": _join_server,
    "restart": _restart,
    "partition": _partition,
    "heal": _heal,
    "slow answers": _slow_answers,
    "slow offers": _slow_offers,
    "reconnect": _reconnect,
}
