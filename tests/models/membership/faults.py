"""Faults for the model of membership, at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dynamix_ps.membership.messages import COORDINATOR, Process
from tests.models.membership.planes import ServerPlane
from tests.models.membership.processes import WorkerProcess
from tests.models.membership.world import World


def disturbances(rng: random.Random, plan: Mapping[str, int], chance: float = 0.01) -> Callable[[World], None]:
    """Faults at random moments.

    Args:
        plan: how many of `kill worker`, `kill server`, `leave`, `leave together`, `join`, `join server`, `restart`,
            `partition`, `heal`, `slow answers`, `slow offers`, `reconnect`, `pause`.
    """
    left = [kind for kind, count in plan.items() for _ in range(count)]
    rng.shuffle(left)

    def disturb(world: World) -> None:
        if left and world.coordinator.members.founded and rng.random() < chance:
            _FAULTS[left.pop()](world, rng)

    return disturb


def staying(world: World) -> list[WorkerProcess]:
    """Those of whom one must be left, or the job has lost its state."""
    return [one for one in world.training if _stays(world, one)]


def _stays(world: World, worker: WorkerProcess) -> bool:
    trainer, plane = worker.trainer, worker.plane
    if world.network.is_blocked(worker.core.known.own) or trainer.is_last or trainer.leaving:
        return False
    if isinstance(plane, ServerPlane):  # it may lack what a lost server had
        slots = plane.exchange.unanswered()
        return all(world.alive(server) for slot in slots for server in [worker.core.known.placed.get(slot)] if server)
    return trainer.round > trainer.entered_at  # it can name its round


def kill_worker(world: World, rng: random.Random) -> None:
    needed = {one.core.known.own for one in staying(world)}
    candidates = [process for process in world.workers if world.alive(process)]
    if len(needed) < 2:
        candidates = [process for process in candidates if process not in needed]
    if candidates:
        world.kill(rng.choice(candidates), rng.choice(("exit", "closed", "silent")))


def kill_server(world: World, rng: random.Random) -> None:
    """One that others can do without: another one has keys on all workers, and no worker but one lacks what it has."""
    usable = [process for process in world.servers if world.alive(process) and not world.network.is_blocked(process)]
    with_keys = [one for one in usable if all(_has_keys(worker, one) for worker in world.training)]
    candidates = [one for one in usable if set(with_keys) - {one}]
    if candidates and len(staying(world)) > 1:
        world.kill(rng.choice(candidates), rng.choice(("exit", "closed", "silent")))


def _has_keys(worker: WorkerProcess, server: Process) -> bool:
    return worker.core.known.placed.get(server.slot) == server


def _leave(world: World, rng: random.Random) -> None:
    if len(there := staying(world)) > 1:
        rng.choice(there).trainer.leaving = True


def _leave_together(world: World, rng: random.Random) -> None:
    """All want to leave, so one must stay until the end."""
    for worker in world.training:
        worker.trainer.leaving = True


def _join(world: World, rng: random.Random) -> None:
    if newcomer := world.newcomer("worker"):
        world.start_worker(newcomer)


def _join_server(world: World, rng: random.Random) -> None:
    if newcomer := world.newcomer("server"):
        world.start_server(newcomer)


def _restart(world: World, rng: random.Random) -> None:
    world.restart_coordinator()


def _partition(world: World, rng: random.Random) -> None:
    if len(there := staying(world)) > 1:
        world.network.block(rng.choice(there).core.known.own, coordinator_only=rng.random() < 0.5)


def _heal(world: World, rng: random.Random) -> None:
    if world.network.blocked:
        world.network.unblock(rng.choice(world.network.blocked))


def _slow_answers(world: World, rng: random.Random) -> None:
    """Of one server to one worker, until nothing else can happen; in a ring, of one worker to another."""
    world.network.hold(rng.choice(sorted(world.servers or world.workers)), rng.choice(sorted(world.workers)))


def _slow_offers(world: World, rng: random.Random) -> None:
    """The coordinator's messages to a newcomer come late."""
    newcomers = [process for process, worker in world.workers.items() if worker.core.known.is_late]
    if newcomers:
        world.network.hold(COORDINATOR, rng.choice(sorted(newcomers)))


def _reconnect(world: World, rng: random.Random) -> None:
    world.reconnect(rng.choice([*world.workers, *world.servers]))


def _pause(world: World, rng: random.Random) -> None:
    """Nothing runs for a while, and then every timer is late."""
    world.now_s += rng.uniform(0.0, 4.0)


_FAULTS: Mapping[str, Callable[[World, random.Random], None]] = {
    "kill worker": kill_worker,
    "kill server": kill_server,
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
    "pause": _pause,
}
