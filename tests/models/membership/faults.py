"""Faults for the model of membership, at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dynamix_ps.membership.messages import COORDINATOR, Process
from tests.models.membership.network import Cut
from tests.models.membership.planes import RingPlane, ServerPlane
from tests.models.membership.processes import WorkerProcess
from tests.models.membership.world import LAUNCHER, World


def disturbances(rng: random.Random, plan: Mapping[str, int], chance: float = 0.01) -> Callable[[World], None]:
    """Faults at random moments.

    Args:
        plan: how many of each kind in _FAULTS.
    """
    left = [kind for kind, count in plan.items() for _ in range(count)]
    rng.shuffle(left)

    def disturb(world: World) -> None:
        if left and world.coordinator.members.founded and rng.random() < chance:
            kind = left.pop()
            if _FAULTS[kind](world, rng) is False:
                left.insert(0, kind)  # later

    return disturb


def staying(world: World) -> list[WorkerProcess]:
    """Those of whom one must be left, or the job has lost its state."""
    return [one for one in world.training if _stays(world, one)]


def _stays(world: World, worker: WorkerProcess) -> bool:
    trainer, plane = worker.trainer, worker.plane
    if (
        world.network.is_blocked(worker.core.known.own)
        or trainer.is_last
        or trainer.leaving
        or worker.core.known.own in world.asked
    ):
        return False
    if isinstance(plane, ServerPlane):  # it may lack what a lost server had
        slots = plane.exchange.unanswered()
        servers = [server for slot, server in worker.core.known.placed.items() if slot in slots]
        return all(_serves(world, server) for server in servers)
    return trainer.round > trainer.entered_at  # it can name its round


def kill_worker(world: World, rng: random.Random) -> None:
    needed = {one.core.known.own for one in staying(world)}
    candidates = [process for process in world.workers if world.alive(process)]
    if len(needed) < 2:
        candidates = [process for process in candidates if process not in needed]
    if candidates and needed:
        world.kill(rng.choice(candidates), rng.choice(("exit", "closed", "silent")))


def kill_server(world: World, rng: random.Random) -> None:
    if candidates := _spare_servers(world):
        world.kill(rng.choice(candidates), rng.choice(("exit", "closed", "silent")))


def _spare_servers(world: World) -> list[Process]:
    """Those that others can do without: another one has keys on all workers, and somebody stays."""
    usable = [process for process in world.servers if _serves(world, process)]
    with_keys = [one for one in usable if all(_has_keys(worker, one) for worker in world.training)]
    return [one for one in usable if set(with_keys) - {one}] if len(staying(world)) > 1 else []


def _serves(world: World, server: Process) -> bool:
    return world.alive(server) and server not in world.coordinator.members.gone.union(world.network.blocked)


def _has_keys(worker: WorkerProcess, server: Process) -> bool:
    return worker.core.known.placed.get(server.slot) == server


def _kill_giver(world: World, rng: random.Random) -> bool:
    """Who has given a newcomer the state, before it has made its first round."""
    needed = {one.core.known.own for one in staying(world)}
    for worker in world.training:
        giver = worker.trainer.giver
        if giver and world.alive(giver) and worker.trainer.entered_at == worker.trainer.round and needed - {giver}:
            world.kill(giver, rng.choice(("exit", "closed", "silent")))
            return True
    return False


def _leave(world: World, rng: random.Random) -> None:
    """On its own notice, or the launcher's."""
    if len(there := staying(world)) > 1:
        one = rng.choice(there)
        if rng.random() < 0.5:
            one.trainer.leaving = True
        else:
            world.ask_to_leave(one.core.known.own)


def _leave_together(world: World, rng: random.Random) -> None:
    """All want to leave, so one must stay until the end."""
    for worker in world.training:
        worker.trainer.leaving = True


def _join(world: World, rng: random.Random) -> None:
    if newcomer := world.newcomer("worker"):
        world.start_worker(newcomer)
        if rng.random() < 0.15:
            world.unreachable.add(newcomer)


def _join_server(world: World, rng: random.Random) -> None:
    if newcomer := world.newcomer("server"):
        world.start_server(newcomer)
        if rng.random() < 0.2 and world.training:
            world.out_of_reach.add((newcomer, rng.choice(world.training).core.known.own))


def _restart(world: World, rng: random.Random) -> None:
    """At once, or while it writes its next records: the last one or two of them are lost."""
    if rng.random() < 0.5:
        world.restart_coordinator()
    else:
        world.truncate = lambda output: -min(len(output.records), rng.randint(1, 2)) if output.records else None


def _partition(world: World, rng: random.Random) -> None:
    """In both directions or in one."""
    there = staying(world)
    candidates = [one.core.known.own for one in there] if len(there) > 1 else []
    if candidates := candidates + _spare_servers(world):
        hears, speaks = rng.choice([(False, False), (False, False), (True, False), (False, True)])
        world.network.block(rng.choice(candidates), Cut(rng.random() < 0.5, hears, speaks))


def _heal(world: World, rng: random.Random) -> None:
    world.show_coordinator()
    if world.network.blocked:
        world.network.unblock(rng.choice(world.network.blocked))


def _hide_coordinator(world: World, rng: random.Random) -> None:
    world.hide_coordinator()


def _slow_answers(world: World, rng: random.Random) -> None:
    """Of one server to one worker, until nothing else can happen; in a ring, of one worker to another."""
    world.network.hold(rng.choice(sorted(world.servers or world.workers)), rng.choice(sorted(world.workers)))


def _slow_offers(world: World, rng: random.Random) -> None:
    """The coordinator's messages to a newcomer come late."""
    newcomers = [process for process, worker in world.workers.items() if worker.core.known.is_late]
    if newcomers:
        world.network.hold(COORDINATOR, rng.choice(sorted(newcomers)))


def _reconnect(world: World, rng: random.Random) -> None:
    """Of one whose messages may be lost with it, if there is one."""
    network, processes = world.network, [*world.workers, *world.servers, LAUNCHER]
    busy = [one for one in processes if network.is_sending(one, COORDINATOR) or network.is_sending(COORDINATOR, one)]
    world.reconnect(rng.choice(busy or processes))


def _break_ring(world: World, rng: random.Random) -> bool:
    """A connection between members of a ring breaks, and all live."""
    rings = [one.plane for one in world.training if isinstance(one.plane, RingPlane) and one.plane.core.waits]
    if rings:
        plane = rng.choice(rings)
        plane.fail()
        world._end_of_rings(plane.own, all_is_lost=False)
    return bool(rings)


def _pause(world: World, rng: random.Random) -> None:
    """Nothing runs for a while, and then every timer is late."""
    world.now_s += rng.uniform(0.0, 4.0)


_FAULTS: Mapping[str, Callable[[World, random.Random], bool | None]] = {
    "kill worker": kill_worker,
    "kill server": kill_server,
    "kill giver": _kill_giver,
    "leave": _leave,
    "leave together": _leave_together,
    "join": _join,
    "join server": _join_server,
    "restart": _restart,
    "partition": _partition,
    "heal": _heal,
    "hide coordinator": _hide_coordinator,
    "slow answers": _slow_answers,
    "slow offers": _slow_offers,
    "reconnect": _reconnect,
    "pause": _pause,
    "break ring": _break_ring,
}
