"""A model in training that workers of an elastic job leave on notice, while the others go on.

departures.py has the rule: who leaves, and with which sum. termination.py takes the notices in.
"""

from __future__ import annotations

import sys

from dynamix_ps.errors import PeerLostError
from worker_hooks.agreement import name_workers
from worker_hooks.evaluated_model import EvaluatedModel
from worker_hooks.termination import TERMINATION
from worker_hooks.trailer import GlobalView


class LeavingModel(EvaluatedModel):
    """An attached model that may go on without some of its workers."""

    @property
    def may_leave(self) -> bool:
        """Whether this worker can leave by vote, and the others go on."""
        return self._began and not self._closed and self._session.may_leave

    def _let_go(self, view: GlobalView) -> None:
        """Follow the votes to leave, as all workers do after this sum. It ends here if that was its last one.

        Raises:
            PeerLostError: nobody goes on, because those that were to stay are lost.
            SystemExit: this worker has left, in order.
        """
        now, votes, present = self._now, self._departures, view.present
        iteration = now.batch.iteration
        if leaving := votes.decide(iteration + 1 + self._switch.lag, present, view.leaving_ranks):
            self._switch.go_without(iteration, leaving)
        if votes.refusal and self.rank in view.leaving_ranks:
            self._observer.leave_refused(iteration, votes.refusal)
            TERMINATION.refuse(votes.refusal)
        if not (staying := votes.staying(present)):
            raise PeerLostError(
                f"{name_workers(present)} leave the job, and the workers that were to go on are lost; start again from "
                "a checkpoint"
            )
        if gone := votes.gone_after(now.first_due, present):
            self._exchange.go_without(gone)
            if not self._follows:  # it learns who is there when it enters
                self._session.others_left(gone)
        if self.rank in gone:
            self._leave(iteration, len(staying))

    def _leave(self, iteration: int, others: int) -> None:
        """The others have all that they need of this worker."""
        self._observer.left(iteration, others)
        self._session.leave()
        print(f"note: worker {self.rank} has left the job; {others} workers go on", file=sys.stderr, flush=True)
        raise SystemExit(0)  # so that the script's own `finally` runs
