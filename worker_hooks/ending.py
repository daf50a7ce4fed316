"""How a training ends by SIGTERM, or because too few workers are left: after a complete iteration, which is saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.errors import PeerLostError
from worker_hooks.process.termination import TERMINATION

if TYPE_CHECKING:
    from worker_hooks.training import Training


class TrainingEnd:
    """The end of one training, as termination.py asks for it."""

    def __init__(self, training: Training) -> None:
        self._training, self._session = training, training.session
        self._others_left = False

    @property
    def goes_on_at_term(self) -> bool:
        """Whether this worker completes an iteration after SIGTERM: worker 0 to save it, the others for worker 0."""
        return self._training.is_training and not self._others_left and self.saves_at_term

    @property
    def may_leave(self) -> bool:
        """Whether this worker can leave by vote, and the others go on."""
        return self._training.is_training and self._session.may_leave

    @property
    def saves_at_term(self) -> bool:
        """Whether worker 0 writes a checkpoint at SIGTERM. The others know it from the newest sum."""
        training, settings = self._training, self._session.settings
        if training.sums.leads:
            saves = training.checkpoints.folder is not None or bool(settings.config.checkpoint_every)
            return settings.config.checkpoint_on_term and saves
        return training.now.sum is not None and training.now.sum.view.saves

    @property
    def job_ends(self) -> bool:
        """Whether the launcher ends this job, which is elastic, with all its workers."""
        return self._session.folder is not None and self._session.folder.end_mark.exists()

    def end_when_told(self) -> None:
        """An iteration is complete: save it if a worker ends here by SIGTERM, and end if it is this one, or all do.

        Raises PeerLostError where all end because others are lost.
        """
        training = self._training
        view = training.now.sum.view if training.now.sum is not None else None
        told = view is not None and view.ending
        ending = TERMINATION.requested if self._session.comm.size == 1 else told
        ends = TERMINATION.requested or (bool(told) and self.job_ends)
        membership = training.membership
        if view is not None and membership is not None and TERMINATION.leaving:
            # those that were to stay end, so there is nobody to leave
            ends |= not set(membership.votes.departures.staying(view.present)) - set(view.ending_ranks)
        known = self._others_left and not ends
        if not ending or known or training.sums.has_local:
            return
        self._others_left = membership is None  # else they go on, and a later SIGTERM finds them training
        if self.saves_at_term:
            training.checkpoints.save(self._file())
        iteration = training.progress.iteration
        if ends and TERMINATION.cause:
            saved = "is in the newest checkpoint" if self.saves_at_term else "is in no checkpoint"
            raise PeerLostError(f"{TERMINATION.cause}; iteration {iteration:,}, the last one, {saved}")
        if ends:
            rank = self._session.workers.here.start
            TERMINATION.end(f"worker {rank} ends by SIGTERM after {iteration} complete iterations")

    def _file(self) -> Path | None:
        """None: in the run folder. Without one, beside the checkpoints of the script."""
        folder = self._training.checkpoints.folder
        if self._session.folder is not None or folder is None:
            return None
        return folder / f"last{self._training.adapter.checkpoint_suffix}"

    def terminated(self) -> None:
        """Record that this worker ends by SIGTERM; do not wait for the other workers."""
        if not self._training.is_closed:
            self._training.is_closed = True
            self._session.reporter.event("terminated", iteration=self._training.progress.iteration)
            self._session.reporter.close()
