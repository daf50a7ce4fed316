"""The state of a training, saved and put back: checkpoints of ours, and what the script saves by itself.

A checkpoint holds model and optimizer, the position (checkpoint.py) and the states of registered objects.
`state_dict` is the same without model and optimizer, for scripts that save these themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamix_ps.errors import CheckpointError, TrainingError
from worker_hooks.process.termination import TERMINATION
from worker_hooks.resuming import for_this_run, tell_where_it_goes_on
from worker_hooks.saved.checkpoint import FORMAT, KEPT, Position, check_format, save_checkpoint
from worker_hooks.saved.saved_fields import read_table

if TYPE_CHECKING:
    from worker_hooks.training import Training


class Checkpoints:
    """`register`, `state_dict`, `load_state_dict` and `save` of one training.

    Attributes:
        fresh: where the training begins if it resumes nothing.
        registered: objects of the script, by the names that it has given them.
        folder: of the newest checkpoint; none: nothing is saved yet.
        number: of the training in this process, from 1.
        went_on_at: iterations of the checkpoint that training goes on from, on the worker that tells of it.
    """

    fresh: Position

    def __init__(self, training: Training) -> None:
        self._training, self._session, self._adapter = training, training.session, training.adapter
        self.registered: dict[str, Any] = {}
        self._unclaimed: dict[str, Any] = {}  # states of objects that the script has not registered yet
        self._start_hyperparameters: Any = None
        self._is_due = self._has_failed = False
        self.folder: Path | None = None
        self.number, self.went_on_at = 1, 0

    def begin_at(self, start: Position) -> None:
        """Training begins at `start`."""
        self._unclaimed = dict(start.registered)
        self._start_hyperparameters = self._adapter.state.hyperparameters()

    def began(self) -> None:
        """The script begins its loop over batches."""
        if self._unclaimed and self._training.sums.leads:
            names = ", ".join(self._unclaimed)
            self._session.degraded(
                "checkpoint",
                f"it has the state of {names}, which neither run.register() nor ema_decay asks for; it is not used",
            )

    def register(self, **objects: Any) -> None:
        """`run.register(...)`."""
        for name, one in objects.items():
            if name in self.registered:
                raise TrainingError(f"run.register({name}=...): the name is taken; give every object a name of its own")
            if not all(callable(getattr(one, method, None)) for method in ("state_dict", "load_state_dict")):
                raise TrainingError(
                    f"run.register({name}=...) got {type(one).__name__}, expected an object with state_dict() "
                    "and load_state_dict()"
                )
            try:
                self._adapter.state.storable(one.state_dict(), "its state")
            except CheckpointError as error:
                raise TrainingError(f"run.register({name}=...): no checkpoint can hold its state: {error}") from error
            self.registered[name] = one
            if name in self._unclaimed:
                self._restore_registered(name)
            elif self._training.progress.iteration and self._training.sums.leads and not self._training.has_begun:
                self._session.degraded("checkpoint", f"it has no state of {name}, which begins anew")

    def _restore_registered(self, name: str) -> None:
        one, state = self.registered[name], self._unclaimed.pop(name)
        try:
            one.load_state_dict(state)
        except Exception as error:  # whatever the object raises for a state of another kind
            raise CheckpointError(
                f"registered object {name}: {type(one).__name__}.load_state_dict() refuses its state: {error}"
            ) from error
        if not self._training.has_begun:  # a new scheduler has set its first learning rate
            self._adapter.state.set_hyperparameters(self._start_hyperparameters)

    def position(self) -> Position:
        """The place after the last complete iteration."""
        training = self._training
        progress, plans, stream = training.progress, training.plans, training.data.stream
        ratio, storable = progress.ratio, self._adapter.state.storable
        cursor, left = stream.resumable(progress.cursor, progress.iteration)
        return Position(
            iteration=progress.iteration,
            cursor=cursor,
            plan=plans.switch.newest_scheduled,
            seed=stream.seed,
            epoch_samples=stream.length,
            pass_code=stream.pass_code,
            left=left,
            noise=plans.rate.noise,
            lr_guard=plans.rate.guard,
            reference_batch=plans.reference_batch,
            pass_batch=training.data.pass_batch,
            epochs_begun=tuple(training.loops.asked.epochs_begun),
            not_trained=progress.not_trained,
            units=plans.worth.seen,
            unit=self._session.settings.config.batch.unit,
            largest_lr=training.observer.progress.largest_lr,
            progress=None if math.isnan(ratio) else ratio,
            registered={name: storable(one.state_dict(), name) for name, one in self.registered.items()},
        )

    def state_dict(self) -> dict[str, Any]:
        """`run.state_dict()`."""
        return {"format": FORMAT, "position": self.position().pack()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`run.load_state_dict(state)`."""
        training = self._training
        if training.has_begun:
            raise TrainingError(
                f"run.load_state_dict() after {training.progress.iteration} iterations; call it after attach(), before "
                "run.batches()"
            )
        found = read_table(state, "state of the run", ("format", "position"))
        check_format(found["format"])
        start = for_this_run(Position.unpack(found["position"]), self.fresh, self._session.settings)
        training.begin_at(start)
        if training.sums.leads:
            tell_where_it_goes_on(training, start)
        for name in self.registered:
            if name in self._unclaimed:
                self._restore_registered(name)
            elif training.sums.leads:
                self._session.degraded("checkpoint", f"it has no state of {name}, which begins anew")

    def save(self, path: Path | str | None = None) -> None:
        """`run.save(path)`."""
        self._training.evaluator.check_own_weights("run.save()")
        if not self._training.sums.leads:
            return
        if path is None and self._session.folder is None:
            raise TrainingError("run.save() needs a path when there is no run folder")
        file, kept = (self._default_checkpoint(), KEPT) if path is None else (Path(path), 1)
        self.folder = file.parent
        with self._training.observer.paused(), TERMINATION.held_off():
            try:
                save_checkpoint(file, self._adapter.state.pack(self.position()), kept)
            except OSError as error:
                if not self._has_failed:
                    why = f"{file} was not saved: {error.strerror or error}; training goes on"
                    self._session.degraded("checkpoint", why)
                self._has_failed = True
            else:
                if self._has_failed:
                    self._session.reporter.tell("recovered", {"what": "checkpoint"})
                self._has_failed = False
                if path is not None and self.number == 1:
                    self._session.reporter.event("saved", checkpoint=str(file.absolute()))

    def _default_checkpoint(self) -> Path:
        """`--resume` is for the first training of a process; what later ones save has other names."""
        assert self._session.folder is not None
        name = "last" if self.number == 1 else f"training-{self.number}-last"
        return self._session.folder.checkpoints_dir / f"{name}{self._adapter.checkpoint_suffix}"

    def save_when_due(self) -> None:
        """The script has done all it does for one iteration: write the checkpoint of `checkpoint_every`, if due."""
        training, every = self._training, self._session.settings.config.checkpoint_every
        self._is_due |= bool(every) and training.progress.every(every)
        if self._is_due and not training.sums.has_local and not training.loops.taken.left_out:  # they are in none
            self._is_due = False
            self.save()
