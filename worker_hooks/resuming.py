"""Where a training begins: anew, or at the place of a checkpoint, with the workers and the cluster file of today."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.errors import CheckpointError, DynamixError
from worker_hooks.sampling.sampler import Cursor
from worker_hooks.saved.checkpoint import Position, newest_valid_checkpoint
from worker_hooks.start import plan_for, resized

if TYPE_CHECKING:
    from dynamix_ps.messages import Plan
    from worker_hooks.settings import Settings
    from worker_hooks.training import Training

logger = logging.getLogger("dynamix")
_REFUSED = b"refused: "  # what rank 0 sends in place of a state when its checkpoint is unusable


def fresh_start(training: Training, first_plan: Plan, seed: int) -> Position:
    """Where this training begins if it resumes nothing."""
    settings, account, data = training.session.settings, training.session.account, training.data
    reference_batch = settings.reference_batch or first_plan.global_batch
    pass_batch = first_plan.global_batch if data.lengths is None else 1  # tokens have no last incomplete batch
    if settings.sizes:  # of the cluster file, whose arbitrator goes on from the training before
        first_plan = account.plan or first_plan
        reference_batch = account.reference_batch or reference_batch
    return Position(
        iteration=0,
        cursor=Cursor(),
        plan=first_plan,
        seed=seed,
        epoch_samples=data.source.samples_per_pass(pass_batch),
        unit=settings.config.batch.unit,
        reference_batch=reference_batch,
        pass_batch=pass_batch,
    )


def same_start(training: Training, prefix: str) -> tuple[Position, Path | None]:
    """Give every worker rank 0's weights and optimizer, from a checkpoint if one is named. Collective.

    Returns the position of the weights, and on rank 0 the file that they come from.

    Raises CheckpointError, on every worker, if the checkpoint is unusable.
    """
    session, adapter, fresh = training.session, training.adapter, training.checkpoints.fresh
    comm, key = session.comm, f"{prefix}.state"
    if comm.rank != 0:
        packed = comm.broadcast(key, b"")
        if packed.startswith(_REFUSED):
            raise CheckpointError(packed.removeprefix(_REFUSED).decode())
        return adapter.state.restore(io.BytesIO(packed)), None
    file = None
    try:
        resume = session.settings.resume if not session.account.trainings else None  # the first one's
        start, file = _from_checkpoint(training, resume) if resume else (fresh, None)
    except DynamixError as error:
        comm.broadcast(key, _REFUSED + str(error).encode())
        raise
    comm.broadcast(key, adapter.state.pack(start))
    return start, file


def _from_checkpoint(training: Training, path: Path) -> tuple[Position, Path]:
    """Put the newest valid checkpoint of `path` into model and optimizer; return its position and its file."""
    session = training.session
    path, packed = newest_valid_checkpoint(path, lambda detail: session.degraded("checkpoint", detail))
    try:
        saved = training.adapter.state.restore(io.BytesIO(packed))
        return for_this_run(saved, training.checkpoints.fresh, session.settings), path
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def for_this_run(start: Position, fresh: Position, settings: Settings) -> Position:
    """`start`, of a checkpoint, with its plan as the workers and the cluster file of today allow it.

    `fresh`: where this training would begin without a checkpoint.
    """
    plan = plan_for(start.plan, fresh.plan.batch_sizes, settings.bounds, settings.config.elastic.keep)
    if plan != start.plan:
        logger.warning("%s", resized(start.plan, plan))
    start = replace(
        start,
        reference_batch=start.reference_batch or fresh.reference_batch,
        pass_batch=start.pass_batch or fresh.pass_batch,
    )
    if settings.guards_rate or start.lr_guard == 1:
        return replace(start, plan=plan)
    logger.warning(
        "the checkpoint was trained with a guard that had left %g of the learning rate, which is not used: the "
        "cluster file has lr: %s",
        *(start.lr_guard, settings.config.lr),
    )
    return replace(start, plan=plan, lr_guard=1.0)


def tell_where_it_goes_on(training: Training, start: Position, file: Path | None = None) -> None:
    """The training goes on from a checkpoint, in `file` or in one of the script's own; one worker tells so."""
    place, checkpoint = start.cursor, None if file is None else str(file.absolute())
    is_known = start.unit == "samples" and (start.epoch_samples or not place.epoch)
    done = place.epoch * start.epoch_samples + place.position - place.owed_samples - start.not_trained
    samples = done if is_known else None
    training.checkpoints.went_on_at = start.iteration
    where = {"iteration": start.iteration, "epoch": place.epoch, "samples": samples}
    training.session.reporter.event("went_on", checkpoint=checkpoint, **where)
    source = checkpoint or "the state that the script has loaded"
    note = f"note: training goes on from {source}, after {start.iteration:,} iterations, in epoch {place.epoch}"
    print(note, file=sys.stderr, flush=True)
