"""How workers and servers enter a training, and how workers leave it on notice, while the others train.

votes.py has what is decided around each sum, arrival.py the way of the state, and termination.py the notices.

A newcomer's script runs from its beginning, as with `--resume`: `attach` returns with the state of the others. If the
data plane tells sums, the others go on meanwhile, and the newcomer follows one of them: its loop runs as theirs, with
no samples, and each of its sums is theirs. When it has caught up, it is voted in. Else it was voted in before, and the
others wait for the copy of the state.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from dynamix_ps.comm.followed_sums import SumGiver, SumTaker
from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process
from worker_hooks.exchange.agreement import different_parameters, name_workers
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.iteration.in_flight import GradientSum
from worker_hooks.loading.fingerprint import difference
from worker_hooks.membership.arrival import StateCopy
from worker_hooks.membership.handover import Handover
from worker_hooks.membership.votes import MembershipVotes
from worker_hooks.planning.plan_switch import plan_of
from worker_hooks.process.termination import TERMINATION
from worker_hooks.saved.checkpoint import Position
from worker_hooks.start import compare_settings

if TYPE_CHECKING:
    from worker_hooks.training import Training


class MembershipChanges:
    """Those of one training of an elastic job.

    Attributes:
        votes: what the sums decide; there from `begin_at` on.
    """

    votes: MembershipVotes[SumGiver]
    _handover: Handover | None = None  # what this worker got when it came late
    _sums_of_others: SumTaker | None = None  # which it takes, as it is in no sum yet

    def __init__(self, training: Training) -> None:
        self._training, self._session, self._comm = training, training.session, training.session.comm
        assert training.session.member is not None, "only an elastic job has members"
        self._member = training.session.member
        self._now, self._data, self._plans = training.now, training.data, training.plans
        self._sums, self._observer = training.sums, training.observer
        self._adapter, self._progress = training.adapter, training.progress
        self._sums.check_announcement = self._check_announcement
        self._rank = self._session.workers.here.start

    def begin_at(self) -> None:
        """Training begins, and there are plans."""
        least = self._session.settings.config.elastic.min_workers or 1
        self.votes = MembershipVotes(
            self._member, self._plans.switch, least, self._may_be_followed, self._sums_of_others is not None
        )

    def close(self) -> None:
        """The training is over."""
        for giver in self.votes.newcomers.here.values():
            giver.close()

    # -- who leaves ---------------------------------------------------------------------------------------------------

    def let_go(self, view: GlobalView) -> None:
        """Follow the votes to leave, as all workers do after this sum. It ends here if that was its last one.

        Raises:
            PeerLostError: nobody goes on, because those that were to stay are lost.
            SystemExit: this worker has left, in order.
        """
        iteration = self._now.batch.iteration
        staying, gone = self.votes.leave(iteration, self._now.first_due, view.present, view.leaving_ranks)
        if (refusal := self.votes.departures.refusal) and self._rank in view.leaving_ranks:
            self._observer.leave_refused(iteration, refusal)
            TERMINATION.refuse(refusal)
        if not staying:
            raise PeerLostError(
                f"{name_workers(view.present)} leave the job, and the workers that were to go on are lost; start again "
                "from a checkpoint"
            )
        if gone:
            self._sums.exchange.trailer.go_without(gone)
        if self._rank in gone:
            self._leave(iteration, len(staying))

    def _leave(self, iteration: int, others: int) -> None:
        """The others have all that they need of this worker."""
        self._observer.left(iteration, others)
        self._member.leave()
        print(f"note: worker {self._rank} has left the job; {others} workers go on", file=sys.stderr, flush=True)
        raise SystemExit(0)  # so that the script's own `finally` runs

    # -- those that train ---------------------------------------------------------------------------------------------

    @property
    def _takes_in(self) -> bool:
        """Whether a newcomer, whose script begins anew, would be where this training is; the same on all workers."""
        return (
            self._session.account.trainings == 1
            and not self._data.is_stream
            and (self._training.replicas.layouts, self._data.loaders, self._now.batches_due) == (0, 1, 1)
        )

    @property
    def _may_be_followed(self) -> bool:
        """Whether a newcomer may follow; the same on all workers. Else all wait for the copy of the state."""
        watches_loss = self._session.settings.guards_rate or self._plans.wire is not None  # from the first sum on
        return self._comm.sends_again and not watches_loss

    @property
    def entry_vote(self) -> int:
        """As `MembershipVotes.vote`."""
        return self.votes.vote(self._sums.leads, self._takes_in)

    def vote_in(self, view: GlobalView) -> None:
        """Follow the votes on entries, as all workers do after this sum."""
        self.votes.enter(self._now.batch.iteration, view.agreed_entry)

    def tell_followers(self) -> None:
        """After a sum of gradients, and before anything follows from it: who follows learns what is not in it."""
        if self._sums_of_others is not None:
            note = self._sums_of_others.note()
            self._plans.switch.vote(plan_of(note["plan"]))
            self.votes.told = {version: Process(**one) for version, one in note["offered"]}
        elif self.votes.newcomers.here:
            offered = [[version, asdict(one)] for version, one in self.votes.offered.items()]
            for giver in self.votes.newcomers.here.values():
                giver.note({"plan": asdict(self._plans.switch.held), "offered": offered})

    def admit(self, iteration: int) -> None:
        """Before a sum: let those in that enter with it, and begin to give the state to those that are to follow."""
        if entering := self.votes.entries.due(iteration):
            if any(one.role == "worker" for one in entering):  # what they cannot know, nobody uses from here on
                self._now.sum = None
                self._plans.renew_guard()
                if self._plans.wire is not None:
                    self._plans.wire.renew()
                self._observer.workers_enter(iteration)
            if self._sums_of_others is None:
                self._take_in(iteration, entering)
            elif self._member.is_among(entering):
                self._enter(self._sums_of_others, iteration)
        if self._now.is_between_sums:
            self._let_follow()

    def _take_in(self, iteration: int, entering: list[Process]) -> None:
        """All workers expect the joiners; the leader sends each joining worker the sums it lacks.

        Servers have no state: they only get their part of what is summed.
        """
        planned, givers = self.votes.take_in(entering, self._sums.leads)
        if self._sums.leads and (servers := [one.slot for one in entering if one.role == "server"]):
            self._observer.servers_entered(iteration, servers)
        if not givers:
            return
        self._listen_to_sums()
        handover = self._hand_over(planned)
        began_s = time.monotonic()
        with self._sums.watch.blocked():  # it is no work of this worker
            there = [one.slot for one, giver in givers.items() if self._give(one, giver, handover, planned)]
        if there:
            self._observer.entered(iteration, there, len(planned.workers), time.monotonic() - began_s)

    def _give(self, newcomer: Process, giver: SumGiver | None, handover: Handover, planned: Planned) -> bool:
        """Whether it has, or will have, what it lacks."""
        there = self.votes.is_there(newcomer, giver, planned)
        if giver is None:
            return there and self._member.give_state(newcomer, handover, self._write_state)
        if there:
            giver.enter(handover.packed())
        else:
            self._member.is_gone(newcomer)
        return there

    def _let_follow(self) -> None:
        """The one that leads begins to give the state to those that are offered. Between sums."""
        newest, followers = self._now.sum, self.votes.newcomers.here
        if not self._takes_in or (newest is not None and newest.batches > 1):  # nobody can be voted in
            while followers:
                followers.popitem()[1].close()
        elif newest is not None and (new := self.votes.unfollowing(self._sums.leads)):
            self._give_copy(new)
        self._listen_to_sums()

    def _give_copy(self, newcomers: list[Process]) -> None:
        with self._sums.watch.blocked():  # it is no work of this worker
            copy = StateCopy()
            self._write_state(cast(BinaryIO, copy))
        handover = self._hand_over(self._member.planned(), follows=True)
        for one in newcomers:
            self.votes.newcomers.here[one] = self._member.let_follow(one, handover, copy)

    def _listen_to_sums(self) -> None:
        self._comm.on_sum = self._give_sum if self.votes.newcomers.here else None

    def _give_sum(self, number: int, values: memoryview) -> None:
        for giver in self.votes.newcomers.here.values():
            giver.sum(number, values)

    def _hand_over(self, planned: Planned, follows: bool = False) -> Handover:
        """What a newcomer needs to know. `planned`: who makes the coming round, with it unless it is to follow."""
        assert self._comm.elastic is not None
        return Handover(
            framework=self._adapter.framework,
            settings=self._session.settings.shared,
            parameters=self._adapter.parameters.described(),
            data=self._data.look.row().tolist(),
            lengths=self._data.lengths_code,
            planned=planned,
            follows=follows,
            round=self._comm.elastic.status().first_incomplete,
            sums=self._comm.known(),
            lag=self._plans.lag,
            steps=self._progress.steps,
            sums_made=self._sums.made,
            window=self._observer.window,
            present=list(self._sums.exchange.trailer.present),
            followed=[asdict(one) for one in self.votes.newcomers.followed],
            newest=None if self._now.sum is None else self._now.sum.packed(),
            wire=None if self._plans.wire is None else self._plans.wire.packed(),
            votes=self.votes.packed(),
            owed=self._data.stream.packed(),
            gathers=self._training.gathers.packed(),
        )

    def _write_state(self, out: BinaryIO) -> None:
        position = self._training.checkpoints.position()
        self._adapter.state.send(replace(position, cursor=self._progress.cursor), out)

    def _check_announcement(self, kind: str) -> None:
        """Raises TrainingError, on this worker alone, before its first batch: the others are in the loop."""
        if self._handover is not None and self._sums.made == self._handover.sums_made:
            raise TrainingError(
                f"this worker has entered a job that trains, and its script calls {kind} before its first batch, which "
                "the others do not do now; call it where run.iteration is 0"
            )
        if self._sums.follows and self._training.is_closed:
            raise PeerLostError("the training was over before this worker had caught up with the others")

    # -- the newcomer -------------------------------------------------------------------------------------------------

    def arrive(self) -> Position:
        """Wait until this worker gets the state of the others; return where they are, or were.

        Raises:
            TrainingError: it does not do what they do. They go on without it.
            PeerLostError: workers were lost meanwhile.
        """
        sums = self._member.arrive()
        with ExitStack() as unless_it_follows:
            unless_it_follows.callback(sums.close)
            self._handover = handover = Handover.of(sums.told())
            self._compare(handover)
            position = self._adapter.state.receive(sums.stream)
            if handover.follows:
                unless_it_follows.pop_all()
                self._sums_of_others, self._sums.follows = sums, True
        self._plans.depth = handover.lag
        self._comm.adopt(handover.sums)
        return position

    def _compare(self, handover: Handover) -> None:
        """Raises TrainingError unless this worker does what the others do."""
        if handover.framework != self._adapter.framework:
            mine = self._adapter.framework
            raise TrainingError(f"the others compute with {handover.framework}, this worker with {mine}")
        other = min(handover.present)  # the others are alike
        compare_settings({other: handover.settings, self._rank: self._session.settings.shared})
        described = self._adapter.parameters.described()
        if list(handover.parameters.items()) != list(described.items()):
            raise different_parameters({other: handover.parameters, self._rank: described}, "as it enters")
        rows = np.array([handover.data, self._data.look.row()])
        if differing := difference(rows, self._data.look.names):
            raise TrainingError(f"the data set of this worker is not that of the others: {differing}")
        if handover.lengths != self._data.lengths_code:
            raise TrainingError("lengths= of attach() are not those of the others")

    def catch_up(self) -> None:
        """Training begins at the position of `arrive`: go on where the others are."""
        handover = self._handover
        assert handover is not None
        self._progress.steps, self._sums.made = handover.steps, handover.sums_made
        trailer = self._sums.exchange.trailer
        trailer.present, trailer.leader = handover.present, min(handover.present)
        self.votes.take_over(handover.votes)
        if self._plans.wire is not None and handover.wire is not None:
            self._plans.wire.take_over(handover.wire)
            self._sums.exchange.set_wire(self._plans.wire.wire)
        self._data.stream.take_over(handover.owed)
        self._training.gathers.take_over(handover.gathers)
        if handover.newest is not None:
            self._now.sum = GradientSum.of(handover.newest)
        if handover.follows:
            self._member.meet(handover.planned)  # nobody waits for that yet
            self._comm.follow(self._sums_of_others)
            self._observer.is_silent = True
        else:
            self.votes.newcomers.take_over(Process(**one) for one in handover.followed)
            self._member.begin(handover.planned, handover.round)
            self._observer.enter(handover.window)

    def _enter(self, sums: SumTaker, iteration: int) -> None:
        """This worker has followed the others, and is in the sum of `iteration`.

        Raises:
            TrainingError: it has not done what they have. They go on without it.
            PeerLostError: workers were lost meanwhile.
        """
        handover = Handover.of(sums.told())
        sums.close()
        found, expected = (self._progress.steps, self._sums.made), (handover.steps, handover.sums_made)
        if found != expected:
            raise TrainingError(
                f"this worker has followed the others, and made {found[0]} steps and {found[1]} sums where they made "
                f"{expected[0]} and {expected[1]}; the script must do the same on every worker, also after a late start"
            )
        self._sums_of_others = None
        self._sums.follows = self.votes.follows = False
        self.votes.newcomers.take_over(Process(**one) for one in handover.followed)
        self._comm.follow(None)
        self._member.begin(handover.planned, handover.round)
        self._observer.enter(handover.window)
        mine = self._plans.switch.plan_at(iteration).batch_sizes[self._rank]
        self._session.entered((mine,), iteration, self._training.framework_text)
        self._session.connect(self._plans.switch.held, self._training.work())
