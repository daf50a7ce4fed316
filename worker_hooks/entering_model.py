"""A model in training that workers and servers enter while the others train.

entries.py has the votes, arrival.py the way of the state. A newcomer's script runs from its beginning, as with
`--resume`: `attach` returns when the worker is in, with the state of the others.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from dynamix_ps.errors import TrainingError
from worker_hooks.agreement import different_parameters
from worker_hooks.checkpoint import Position
from worker_hooks.fingerprint import difference
from worker_hooks.handover import Handover, Planned
from worker_hooks.leaving_model import LeavingModel
from worker_hooks.stream_source import StreamSource
from worker_hooks.trailer import GlobalView


class EnteringModel(LeavingModel):
    """An attached model that workers may enter."""

    _handover: Handover | None = None  # what this worker got when it came late

    @abstractmethod
    def _position(self) -> Position:
        """The place after the last complete iteration."""

    # -- those that train ---------------------------------------------------------------------------------------------

    @property
    def _takes_in(self) -> bool:
        """Whether a newcomer, whose script begins anew, would be where this training is; the same on all workers."""
        return (
            self._session.account.trainings == 1
            and not isinstance(self._source, StreamSource)
            and (self._layouts, self._loaders, self._now.batches_due) == (0, 1, 1)
        )

    @property
    def _entry_vote(self) -> int:
        return 0 if self._comm.elastic is None else self._entries.vote(self._session.offered(), self._takes_in)

    def _vote_in(self, view: GlobalView) -> None:
        """Follow the votes on entries, as all workers do after this sum."""
        iteration = self._now.batch.iteration
        first = iteration + 1 + self._switch.lag
        entering = self._entries.decide(first, view.agreed_entry, self._session.offered())
        if slots := [one.slot for one in entering if one.role == "worker"]:
            self._switch.take_in(iteration, slots)
            self._departures.forget(slots)

    def _admit(self, iteration: int) -> None:
        """Before the first sum with newcomers: all expect them, and the one that leads gives workers the state.

        Servers have no state: they only get their part of what is summed.
        """
        if not (entering := self._entries.due(iteration)):
            return
        planned = self._session.take_in(entering)
        workers = [one for one in entering if one.role == "worker"]
        if self._leads and (servers := [one.slot for one in entering if one.role == "server"]):
            self._observer.servers_entered(iteration, servers)
        if not workers:
            return
        # What a newcomer cannot know, nobody uses from here on.
        self._now.sum = None
        self._guard = self._make_guard()
        if not self._leads:
            return
        handover = self._hand_over(planned)
        began_s = time.monotonic()
        with self._watch.blocked():  # it is no work of this worker
            there = [one.slot for one in workers if self._session.give_state(one, handover, self._write_state)]
        if there:
            self._observer.entered(iteration, there, len(planned.workers), time.monotonic() - began_s)

    def _hand_over(self, planned: Planned) -> Handover:
        assert self._comm.elastic is not None
        return Handover(
            framework=self.framework,
            parameters=self._described_parameters(),
            data=self._look.row().tolist(),
            lengths=self._lengths_code,
            planned=planned,
            round=self._comm.elastic.status().first_incomplete,
            sums=self._comm.known(),
            lag=self._lag,
            steps=self._steps,
            sums_made=self._sums,
            present=list(self._exchange.present),
            plans=self._switch.packed(),
            entries=self._entries.packed(),
            departures=self._departures.packed(),
            owed=self._stream.packed(),
        )

    def _write_state(self, out: BinaryIO) -> None:
        self._send_state(replace(self._position(), cursor=self._cursor), out)

    def _announce(self, kind: str) -> None:
        """Raises TrainingError, on this worker alone, before its first batch: the others are in the loop."""
        if self._handover is not None and self._sums == self._handover.sums_made:
            raise TrainingError(
                f"this worker has entered a job that trains, and its script calls {kind} before its first batch, which "
                "the others do not do now; call it where run.iteration is 0"
            )
        super()._announce(kind)

    # -- the newcomer -------------------------------------------------------------------------------------------------

    def _arrive(self) -> Position:
        """Wait until the others have taken this worker in; return where they are.

        Raises:
            TrainingError: it does not do what they do. They go on without it.
            PeerLostError: workers were lost meanwhile.
        """
        with self._session.arrive() as (handover, state):
            self._handover = handover
            self._compare(handover)
            position = self._receive_state(state)
        self._lag = handover.lag
        self._comm.adopt(handover.sums)
        return position

    def _compare(self, handover: Handover) -> None:
        """Raises TrainingError unless this worker does what the others do."""
        if handover.framework != self.framework:
            raise TrainingError(f"the others compute with {handover.framework}, this worker with {self.framework}")
        mine = self._described_parameters()
        if list(handover.parameters.items()) != list(mine.items()):
            raise different_parameters({min(handover.present): handover.parameters, self.rank: mine}, "as it enters")
        rows = np.array([handover.data, self._look.row()])
        if differing := difference(rows, self._look.names):
            raise TrainingError(f"the data set of this worker is not that of the others: {differing}")
        if handover.lengths != self._lengths_code:
            raise TrainingError("lengths= of attach() are not those of the others")

    def _catch_up(self) -> None:
        """After `_place`: go on where the others are."""
        handover = self._handover
        assert handover is not None
        self._steps, self._sums = handover.steps, handover.sums_made
        self._exchange.present, self._exchange.leader = handover.present, min(handover.present)
        self._switch.take_over(handover.plans)
        self._entries.take_over(handover.entries)
        self._departures.take_over(handover.departures)
        self._stream.take_over(handover.owed)
        self._session.begin(handover.planned, handover.round)
