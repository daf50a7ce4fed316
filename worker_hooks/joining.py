"""Two ways into a job: with the other workers, from its start, or late, while they train."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker_hooks.data import Data
from worker_hooks.resuming import fresh_start, same_start
from worker_hooks.run import Run
from worker_hooks.start import (
    agreed_lengths,
    check_data_sets,
    check_parameters,
    check_possible,
    check_settings,
    check_workers,
    looked_at,
    of_every_worker,
    own_lengths,
)
from worker_hooks.training import Training

if TYPE_CHECKING:
    from pathlib import Path

    from worker_hooks.adapter import Adapter
    from worker_hooks.saved.checkpoint import Position
    from worker_hooks.session import Session

logger = logging.getLogger("dynamix")
FIRST_SIZE = 64  # of a worker, where neither cluster file nor script names one
_attached = itertools.count()  # several models in one process get keys of their own


@dataclass(frozen=True)
class Attached:
    """What a script gives to `attach` beside models, optimizers and data.

    Attributes:
        batch_size: of each worker where no cluster file says otherwise; none: the loader's, or FIRST_SIZE.
        seed: of the order of the data where no cluster file says otherwise.
        lengths: tokens of every sample; none: sizes are in samples.
    """

    batch_size: int | None = None
    seed: int | None = None
    lengths: Any = None


def join(adapter: Adapter, data: Any, session: Session, given: Attached = Attached()) -> Run:
    """Take part in the job with these models, optimizers and data. Collective, but for a worker that comes late.

    Raises:
        TrainingError: they do not fit together, or not with those of the other workers.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    settings = session.settings
    own_seed = settings.config.seed if given.seed is None else given.seed
    samples = Data(data, session, adapter, own_seed)
    training = Training(adapter, samples, session, f"dynamix.{next(_attached)}")
    check_possible(session, adapter, samples.source)
    late = session.comm.late  # until it has arrived
    start, file = (_come_late if late else _start_together)(training, given, own_seed)
    if start.seed != own_seed:
        rank, whose = session.workers.here.start, "the checkpoint's" if settings.resume else "rank 0's"
        logger.warning("worker %d: seed %d is not used, %s is: %d", rank, own_seed, whose, start.seed)
    training.begin_at(start)
    if late and training.membership is not None:
        training.membership.catch_up()
    training.attached(start, file)
    return Run(training)


def _start_together(training: Training, given: Attached, seed: int) -> tuple[Position, Path | None]:
    """All workers compare what they have, and take the weights of rank 0. Returns where they begin."""
    session, data, prefix = training.session, training.data, training.sums.prefix
    comm, settings = session.comm, session.settings
    check_workers(comm, training.adapter.framework)
    check_settings(comm, f"{prefix}.settings", settings.shared)
    data.look = check_data_sets(comm, f"{prefix}.data", data.source)
    data.lengths = agreed_lengths(comm, f"{prefix}.lengths", given.lengths, data.source, settings.config.batch.unit)
    training.plans.depth = max(of_every_worker(comm, f"{prefix}.depth", data.source.depth))
    training.adapter.lay_out(data.source)
    check_parameters(comm, f"{prefix}.parameters", training.adapter.parameters.described())
    training.open_sums()
    sizes = of_every_worker(comm, f"{prefix}.size", _first_size(training, given))
    training.checkpoints.fresh = _fresh(training, sizes, seed)
    return same_start(training, prefix)


def _come_late(training: Training, given: Attached, seed: int) -> tuple[Position, Path | None]:
    """This worker takes part in no sum before it knows what the others do. Returns where they are."""
    session, data = training.session, training.data
    data.look = looked_at(data.source)
    data.lengths = own_lengths(given.lengths, data.source, session.settings.config.batch.unit)
    training.plans.depth = data.source.depth
    training.adapter.lay_out(data.source)
    sizes = (_first_size(training, given),) * session.comm.size
    training.checkpoints.fresh = _fresh(training, sizes, seed)
    assert training.membership is not None, "only an elastic job takes workers in"
    position = training.membership.arrive()
    training.open_sums()  # in the buckets of the others, which depend on links that they have measured
    return position, None


def _first_size(training: Training, given: Attached) -> int:
    return given.batch_size or training.data.source.batch_size or FIRST_SIZE


def _fresh(training: Training, sizes: tuple[int, ...], seed: int) -> Position:
    session = training.session
    return fresh_start(training, session.settings.first_plan(session.workers.by_slot(sizes)), seed)
