"""What must hold in a job of the model.

After each round of each worker

    contributors of a round, and so the state after it, are the same on all who are members or have left
    nobody completes a round that a newer generation makes anew
    each sample is taken once per epoch

whenever a process is lost or ends, that it was gone, cut off, or could not go on, and that this is found out; and at
the end, that nothing is stuck, that all who came have entered, all who were to leave have left, and others have trained
to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamix_ps.membership.journal import Decided, Joined, Lost, Record
from dynamix_ps.membership.messages import Process, Suspect
from tests.models.membership.job import WAIT_S
from tests.models.membership.pieces import Answer
from tests.models.membership.planes import RingPlane, ServerPlane
from tests.models.membership.trainer import DEPART_S, Violation

if TYPE_CHECKING:
    from tests.models.membership.processes import WorkerProcess
    from tests.models.membership.world import World

_PATIENCE = 40  # rounds until all that come have entered


class Checks:
    """Of one job. Its methods raise Violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[int, dict[Process, Any]] = {}  # after each round
        self._closes: dict[int, bool] = {}  # whether the training is over before a round

    def forget(self, process: Process) -> None:
        """It is dead: what it has made counts no more."""
        for states in self._states.values():
            states.pop(process, None)

    # Rounds.

    def complete(self, worker: WorkerProcess) -> None:
        """A round is complete."""
        process, members = worker.core.known.own, self._world.coordinator.members
        if process in members.gone:
            return  # its step is nobody's; it will be refused
        newest = Decided(members.generation, members.first_round)
        number = worker.trainer.round
        if newest in self._world.disk and number >= members.first_round and worker.core.generation < members.generation:
            raise Violation(f"{process} completes round {number} in generation {worker.core.generation}: made anew")

    def step(self, worker: WorkerProcess) -> None:
        """The step of a round is made."""
        world, process, state = self._world, worker.core.known.own, worker.trainer.training
        gone = world.coordinator.members.gone
        if process in gone:
            return
        number = state.iteration - 1
        if wrong := state.wrong_samples():
            raise Violation(f"{process}, round {number}: {wrong}")
        world.counts.rounds += 1
        others = self._states.setdefault(number, {})
        for other, theirs in others.items():
            lost = other in gone and world.workers[other].over != "left"
            if theirs != state and not lost:
                raise Violation(f"round {number}: {process} has {state}, {other} has {theirs}")
        others[process] = state

    def closes(self, number: int, at_once: bool = False) -> bool:
        """Whether the training is over before this round: it goes on until all have come and gone that are to."""
        world = self._world
        if at_once:
            self._closes[number] = True
        elif number < world.job.rounds:
            return self._closes.get(number, False)
        if number not in self._closes:
            world.heal()
            waiting = self._awaited()
            if waiting and number >= world.job.rounds + _PATIENCE:
                raise Violation(f"nobody takes in, or lets go, {waiting}, after {_PATIENCE} rounds more")
            self._closes[number] = not waiting
        return self._closes[number]

    def _awaited(self) -> list[Process]:
        """Newcomers that have not entered, and workers that are to leave and can."""
        world, there = self._world, self._world.training
        late = [process for process, one in world.workers.items() if world.alive(process) and one.core.known.is_late]
        for server in filter(world.alive, world.servers):
            late += [server] if any(one.core.known.placed.get(server.slot) != server for one in there) else []
        if world.out_of_reach:  # nobody enters after such a server
            late = []
        leaving = [one.core.known.own for one in there if one.trainer.leaving or one.core.known.own in world.asked]
        return late + (leaving if len(there) - len(leaving) >= world.job.least else [])

    # Losses and ends.

    def record(self, record: Record) -> None:
        """Only who is gone, or was cut off, is lost. A newcomer may be where nobody can reach it."""
        world = self._world
        if isinstance(record, Joined) and record in world.disk:
            raise Violation(f"{record.process} is offered twice")
        if isinstance(record, Decided) and len(world.coordinator.members.workers) < world.job.least:
            since_s = world.coordinator.short_since_s
            if since_s is None or world.now_s - since_s < WAIT_S:
                raise Violation(f"{record}, and workers that are too few have not waited for others")
        if not isinstance(record, Lost):
            return
        if record.process in world.in_order:
            raise Violation(f"{record.process} has left, and is lost: {record.reason}")
        if not world.alive(record.process):
            return
        in_vain = any(record.process in worker.trainer.not_reached for worker in world.workers.values())
        in_vain = in_vain and (record.process in world.unreachable or self._has_lost_its_giver(record.process))
        if record.process not in world.network.was_blocked and not in_vain:
            raise Violation(f"{record.process} is lost and lives: {record.reason}")

    def _has_lost_its_giver(self, newcomer: Process) -> bool:
        trainer = self._world.workers[newcomer].trainer
        giver = trainer.giver or next((sender for sender, _ in trainer.inbox), None)
        if giver is None:
            return False
        return not self._world.alive(giver) or self._world.workers[giver].trainer.leaving

    def found_out(self, processes: list[Process], only_seen: bool = False) -> None:
        """These are dead since long, and others go on or wait for somebody else.

        `only_seen`: their connections were closed a while ago.
        """
        world, coordinator = self._world, self._world.coordinator
        members = coordinator.members
        waits = coordinator.short_since_s is not None or not members.founded or members.finished
        if waits or not world.training:
            return
        if not world.job.servers and only_seen:
            processes = [one for one in processes if any(self._breaks(one, worker) for worker in world.training)]
        if unknown := [one for one in processes if one in members.workers | members.servers]:
            raise Violation(f"nobody has found out that {unknown} are gone")

    def _breaks(self, process: Process, worker: WorkerProcess) -> bool:
        """This worker waits for a sum in a ring that the process was in."""
        assert isinstance(worker.plane, RingPlane)
        core = worker.plane.core
        there = core.ring is not None and (process.slot, process.address) in core.ring.members
        return there and core.next_part() is not None

    def reason(self, process: Process) -> None:
        """Whoever ends has left, or what it lacks is lost with others."""
        world, members = self._world, self._world.coordinator.members
        if process in members.gone:
            return
        if process in world.servers:
            raise Violation(f"{process} ends: {world.servers[process].over}")
        worker = world.workers[process]
        trainer, reason, round_number = worker.trainer, worker.over, worker.trainer.round
        if worker.core.known.is_late:
            if reason == "too late":
                planned = trainer.planned
                assert planned is not None
                legal = planned.generation < members.generation or process not in planned.workers
            else:
                legal = "followed is gone" not in reason or self._has_lost_its_giver(process)
        elif reason == "left":
            legal = trainer.leaving or self._closes.get(round_number, False)
            legal &= not (isinstance(trainer.last_word, Suspect) and worker.plane.departed)
            excused = process in world.network.was_blocked or world.unseen or world.died_at_end
            if trainer.waited_s > DEPART_S and not excused:
                raise Violation(f"{process} leaves, and has waited for the others in vain")
        elif "which is lost" in reason:
            legal = self._has_lost_a_sum(worker)
        elif "with which it leaves" in reason:
            legal = trainer.is_last
        elif "before it had the state" in reason:
            legal = trainer.entered_at == round_number
        else:
            legal = "were to stay are lost" in reason
        if not legal:
            raise Violation(f"{process} ends in round {round_number} without need: {reason}")

    def _has_lost_a_sum(self, worker: WorkerProcess) -> bool:
        """A server is lost that had a part of a sum, and nothing of it is on its way."""
        assert isinstance(worker.plane, ServerPlane)
        lacking, world, gone = worker.plane.exchange.unanswered(), self._world, self._world.coordinator.members.gone
        lost = [
            one
            for slot, one in worker.core.known.placed.items()
            if slot in lacking and (one in gone or not world.alive(one))
        ]
        coming = [message for one in lost for message in world.network.arriving(one, worker.core.known.own)]
        return bool(lost) and not any(
            isinstance(message, Answer) and message.round == worker.trainer.round for message in coming
        )

    def end(self) -> None:
        """Nothing can happen any more."""
        world = self._world
        if world.running:
            stuck = [(w.trainer, w.core.generation) for w in world.running]
            where = {str(trainer.own): (trainer.phase.name, trainer.round, number) for trainer, number in stuck}
            change, members = world.coordinator.change, world.coordinator.members
            raise Violation(f"stuck: {where}, the coordinator has {change} {vars(members)}")
        ends = [w.over for w in world.workers.values() if w.trainer.has_state or w.trainer.training.rounds]
        if world.counts.cut_off and "all that were to stay are lost" in ends:
            return  # only one that leaves had a sum that a server has lost
        if not any(w.over == "left" and self._closes.get(w.trainer.round) for w in world.workers.values()):
            raise Violation(f"nobody has made all {world.job.rounds} rounds: {ends}, {world.reasons}")
