"""A model in training whose state can be saved and come back: checkpoints of ours, and the script's own.

A checkpoint holds model and optimizer, the position (checkpoint.py) and the states of registered objects.
`state_dict` is the same without model and optimizer, for scripts that save these themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynamix_ps.errors import CheckpointError, PeerLostError, TrainingError
from worker_hooks.checkpoint import FORMAT, KEPT, Position, check_format, save_checkpoint
from worker_hooks.entering_model import EnteringModel
from worker_hooks.saved_fields import read_table
from worker_hooks.session import Session
from worker_hooks.termination import TERMINATION


class ResumableModel(EnteringModel):
    """An attached model with `register`, `state_dict`, `load_state_dict` and `save`."""

    def __init__(
        self, data: Any, session: Session, batch_size: int | None, seed: int | None, lengths: Any = None
    ) -> None:
        super().__init__(data, session, batch_size, seed, lengths)
        self._registered: dict[str, Any] = {}
        self._save_due = self._save_failed = False
        self._saved_in: Path | None = None  # folder of the newest checkpoint, once there is one
        self._others_left = False
        self._training_number = session.account.trainings  # of this process, from 1
        TERMINATION.watch(self)
        if self._comm.elastic is not None:
            TERMINATION.notice_usr1()

    def register(self, **objects: Any) -> None:
        """Make the state of further objects part of checkpoints: schedulers, a GradScaler, averages of the weights.

        `run.register(scheduler=scheduler, scaler=scaler)`, after attach and on every worker. Each has `state_dict()`
        and `load_state_dict()`. After a resume their state is restored at once.

        Raises:
            TrainingError: an object lacks these methods, its name is taken, or a checkpoint cannot hold its state.
            CheckpointError: the state in the checkpoint is not of this object.
        """
        for name, one in objects.items():
            if name in self._registered:
                raise TrainingError(f"run.register({name}=...): the name is taken; give every object a name of its own")
            if not all(callable(getattr(one, method, None)) for method in ("state_dict", "load_state_dict")):
                raise TrainingError(
                    f"run.register({name}=...) got {type(one).__name__}, expected an object with state_dict() "
                    "and load_state_dict()"
                )
            try:
                self._storable(one.state_dict(), "its state")
            except CheckpointError as error:
                raise TrainingError(f"run.register({name}=...): no checkpoint can hold its state: {error}") from error
            self._registered[name] = one
            if name in self._unclaimed:
                self._restore_registered(name)
            elif self.iteration and self._leads and not self._began:
                self._degraded("checkpoint", f"it has no state of {name}, which begins anew")

    def _restore_registered(self, name: str) -> None:
        one, state = self._registered[name], self._unclaimed.pop(name)
        try:
            one.load_state_dict(state)
        except Exception as error:  # whatever the object raises for a state of another kind
            raise CheckpointError(
                f"registered object {name}: {type(one).__name__}.load_state_dict() refuses its state: {error}"
            ) from error
        if not self._began:  # a new scheduler has set its first learning rate
            self._set_hyperparameters(self._start_hyperparameters)

    def _position(self) -> Position:
        """The place after the last complete iteration."""
        ratio = self._trained_ratio
        cursor, left = self._stream.resumable(self._cursor, self.iteration)
        return Position(
            iteration=self.iteration,
            cursor=cursor,
            plan=self._switch.newest_scheduled,
            seed=self._stream.seed,
            epoch_samples=self._stream.length,
            pass_code=self._stream.pass_code,
            left=left,
            noise=self._rate.noise,
            lr_guard=self._rate.guard,
            reference_batch=self._reference_batch,
            pass_batch=self._pass_batch,
            epochs_begun=tuple(self._asked.epochs_begun),
            not_trained=self._not_trained,
            units=self._worth.seen,
            unit=self._settings.unit,
            largest_lr=self._observer.progress.largest_lr,
            progress=None if math.isnan(ratio) else ratio,
            registered={name: self._storable(one.state_dict(), name) for name, one in self._registered.items()},
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint of the script's own: place in the data, plan, learning-rate state and registered objects.

        Not in it: model and optimizer. The same on all workers, except for registered objects; any of them may call it.
        """
        return {"format": FORMAT, "position": self._position().pack()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place that `state_dict` returned. On every worker, after attach and before the first batch.

        There may be more or fewer workers than when it was saved: they share its global batch.
        Objects registered before or after this call get their state back.

        Raises:
            TrainingError: training has begun, or the state is of other data.
            CheckpointError: the state is damaged; the message names the field.
        """
        if self._began:
            raise TrainingError(
                f"run.load_state_dict() after {self.iteration} iterations; call it after attach(), before run.batches()"
            )
        found = read_table(state, "state of the run", ("format", "position"))
        check_format(found["format"])
        start = self._for_this_run(Position.unpack(found["position"]))
        self._place(start)
        if self._leads:
            self._tell_where_it_goes_on(start)
        for name in self._registered:
            if name in self._unclaimed:
                self._restore_registered(name)
            elif self._leads:
                self._degraded("checkpoint", f"it has no state of {name}, which begins anew")

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint (rank 0; others return at once): model, optimizer, registered objects, place, plan.

        Call it at the end of the loop's body, after schedulers have made their step. Default: `checkpoints/last.pt`
        (torch) or `last.npz` (MXNet) in the run folder, where the two before it stay as `last.1` and `last.2`. A file
        is complete or absent. If it cannot be written, training goes on; a warning and the summary say so. Does not
        count as training time.
        """
        self._check_own_weights("run.save()")
        if not self._leads:
            return
        if path is None and self._session.folder is None:
            raise TrainingError("run.save() needs a path when there is no run folder")
        file, kept = (self._default_checkpoint(), KEPT) if path is None else (Path(path), 1)
        self._saved_in = file.parent
        with self.paused(), TERMINATION.held_off():
            try:
                save_checkpoint(file, self._pack(self._position()), kept)
            except OSError as error:
                if not self._save_failed:
                    self._degraded("checkpoint", f"{file} was not saved: {error.strerror or error}; training goes on")
                self._save_failed = True
            else:
                if self._save_failed:
                    self._session.reporter.tell("recovered", {"what": "checkpoint"})
                self._save_failed = False
                if path is not None and self._training_number == 1:
                    self._session.reporter.event("saved", checkpoint=str(file.absolute()))

    def _default_checkpoint(self) -> Path:
        """`--resume` is for the first training of a process; what later ones save has other names."""
        assert self._session.folder is not None
        name = "last" if self._training_number == 1 else f"training-{self._training_number}-last"
        return self._session.folder.checkpoints_dir / f"{name}{self.checkpoint_suffix}"

    def _save_when_due(self) -> None:
        """The script has done all it does for one iteration: write the checkpoint of `checkpoint_every`, if due."""
        every = self._settings.checkpoint_every
        self._save_due |= bool(every) and self.every(every)
        if self._save_due and not self._has_local and not self._taken.left_out:  # they are in no checkpoint
            self._save_due = False
            self.save()

    # -- SIGTERM ------------------------------------------------------------------------------------------------------

    @property
    def goes_on_at_term(self) -> bool:
        """Whether this worker completes an iteration after SIGTERM: worker 0 to save it, the others for worker 0."""
        return self._began and not self._closed and not self._others_left and self._saves_at_term

    @property
    def _saves_at_term(self) -> bool:
        """Whether worker 0 writes a checkpoint at SIGTERM. The others know it from the newest sum."""
        if self._leads:
            return self._settings.checkpoint_on_term and (
                self._saved_in is not None or bool(self._settings.checkpoint_every)
            )
        return self._now.sum is not None and self._now.sum.view.saves

    @property
    def job_ends(self) -> bool:
        """Whether the launcher ends this job, which is elastic, with all its workers."""
        return self._session.folder is not None and self._session.folder.end_mark.exists()

    def _end_when_told(self) -> None:
        """An iteration is complete: save it if a worker ends here by SIGTERM, and end if it is this one, or all do.

        Raises PeerLostError where all end because others are lost.
        """
        view = self._now.sum.view if self._now.sum is not None else None
        told = view is not None and view.ending
        ending = TERMINATION.requested if self._comm.size == 1 else told
        ends = TERMINATION.requested or (bool(told) and self.job_ends)
        if view is not None and TERMINATION.leaving:  # those that were to stay end, so there is nobody to leave
            ends |= not set(self._departures.staying(view.present)) - set(view.ending_ranks)
        known = self._others_left and not ends
        if not ending or known or self._has_local:
            return
        self._others_left = self._comm.elastic is None  # else they go on, and a later SIGTERM finds them training
        if self._saves_at_term:
            self.save(self._term_checkpoint())
        if ends and TERMINATION.cause:
            saved = "is in the newest checkpoint" if self._saves_at_term else "is in no checkpoint"
            raise PeerLostError(f"{TERMINATION.cause}; iteration {self.iteration:,}, the last one, {saved}")
        if ends:
            TERMINATION.end(f"worker {self.rank} ends by SIGTERM after {self.iteration} complete iterations")

    def _term_checkpoint(self) -> Path | None:
        """In the run folder, or without one beside the checkpoints of the script."""
        if self._session.folder is not None or self._saved_in is None:
            return None
        return self._saved_in / f"last{self.checkpoint_suffix}"

    def terminated(self) -> None:
        """Record that this worker ends by SIGTERM; do not wait for the other workers."""
        if not self._closed:
            self._closed = True
            self._session.reporter.event("terminated", iteration=self.iteration)
            self._session.reporter.close()
