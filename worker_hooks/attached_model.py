"""A training that several workers take part in: how it joins them, and how it leaves.

positioned_model.py says where it is, evaluated_model.py what is measured beside the iterations, resumable_model.py how
its state is saved and comes back. training.py tells what happens between joining and leaving: the iterations.
"""

from __future__ import annotations

import atexit
import io
import itertools
import logging
import math
import sys
import zlib
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamix_ps.comm.followed_sums import SumGiver
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import CheckpointError, DynamixError, TrainingError
from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from worker_hooks import failure
from worker_hooks.batches import NOTHING_READ, Batches, BatchStream, StreamWorker
from worker_hooks.checkpoint import Position, newest_valid_checkpoint
from worker_hooks.data_source import DataSetSource, DataSource
from worker_hooks.departures import Departures
from worker_hooks.entries import Entries
from worker_hooks.gathers import Gathers
from worker_hooks.iteration import IterationInFlight
from worker_hooks.learning_rate import LearningRate
from worker_hooks.memory_ceiling import MemoryCeiling
from worker_hooks.observe.reporter import Reporting
from worker_hooks.observe.stall import StallWatch
from worker_hooks.observe.stopwatch import NewestSum
from worker_hooks.observe.training_observer import TrainingObserver
from worker_hooks.out_of_memory import first_line, is_out_of_memory
from worker_hooks.plan_switch import PlanSwitch
from worker_hooks.positioned_model import PositionedModel
from worker_hooks.rate_guard import RateGuard
from worker_hooks.reduction import Reduction
from worker_hooks.sampler import Cursor, GlobalSampler
from worker_hooks.script_errors import of_sizes
from worker_hooks.script_limits import ScriptLimits
from worker_hooks.session import Session
from worker_hooks.start import (
    agreed_lengths,
    check_data_sets,
    check_enough,
    check_order,
    check_parameters,
    check_place,
    check_settings,
    check_unit,
    check_workers,
    looked_at,
    of_every_worker,
    own_lengths,
    plan_for,
    resized,
)
from worker_hooks.stream_source import StreamSource
from worker_hooks.taken_ahead import TakenAhead
from worker_hooks.termination import TERMINATION
from worker_hooks.token_sampler import TokenSampler
from worker_hooks.units import SizeWorth
from worker_hooks.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from worker_hooks.own_size import OwnSize

logger = logging.getLogger("dynamix")
FIRST_SIZE = 64  # of a worker, where neither cluster file nor script names one
_attached = itertools.count()  # several models in one process get keys of their own
_REFUSED = b"refused: "  # what rank 0 sends in place of a state when its checkpoint is unusable


class AttachedModel(PositionedModel):
    """A model in training, from joining the other workers to leaving them."""

    _samples_in_hand = 0  # of the batch that the script has, or had when it left the loop
    _samples_before = 0  # of the batch before it
    _read_from: Path | None = None  # checkpoint
    _went_on_at = 0  # iterations of the checkpoint, on the worker that tells of it
    _largest_batch = 0  # samples of this worker that have fitted so far
    _data_size: float = math.nan  # of a pass, in the plan's unit; NaN: of a stream

    def __init__(
        self, data: Any, session: Session, batch_size: int | None, seed: int | None, lengths: Any = None
    ) -> None:
        comm, settings = session.comm, session.settings
        self._workers = session.workers
        self.rank, self.size = self._workers.here.start, self._workers.count
        self._session, self._comm, self._settings = session, comm, settings
        self._adaptive = settings.mode != "off"
        own_seed = settings.seed if seed is None else seed
        self._source = self._loading = self._source_of(data, own_seed)
        self.iteration = 0
        self._began = False  # the loop over batches
        self._closed = False
        failure.exit_on_failure(self)

        self._check_possible()
        self._prefix = prefix = f"dynamix.{next(_attached)}"
        late = comm.late  # then it takes part in no sum before it knows what the others do
        if late:
            self._look = looked_at(self._source)
            self._lengths, self._lag = own_lengths(lengths, self._source, settings.unit), self._source.depth
        else:
            check_workers(comm, self.framework)
            check_settings(comm, f"{prefix}.settings", settings.shared)
            self._look = check_data_sets(comm, f"{prefix}.data", self._source)
            self._lengths = agreed_lengths(comm, f"{prefix}.lengths", lengths, self._source, settings.unit)
            self._lag = max(of_every_worker(comm, f"{prefix}.depth", self._source.depth))
        self._loaders = 1  # so far
        self._lay_out()
        if not late:
            check_parameters(comm, f"{prefix}.parameters", self._described_parameters())
        self._exchange = self._make_exchange(prefix)
        self._evaluation_key = f"{prefix}.evaluation"
        comm.declare(self._evaluation_key)
        self._gathers = Gathers(self)

        size = batch_size or self._source.batch_size or FIRST_SIZE
        sizes = (size,) * comm.size if late else of_every_worker(comm, f"{prefix}.size", size)
        self._fresh = self._fresh_start(settings.first_plan(self._workers.by_slot(sizes)), own_seed)
        start = self._arrive() if late else self._same_start(prefix)
        if start.seed != own_seed:
            whose = "the checkpoint's" if settings.resume else "rank 0's"
            logger.warning("worker %d: seed %d is not used, %s is: %d", self.rank, own_seed, whose, start.seed)
        self._place(start)
        if late:
            self._catch_up()

        session.start(self._sizes_here, start.iteration, self._framework_text, self._follows)
        if self._read_from is not None:
            self._tell_where_it_goes_on(start, self._read_from)
        if detail := getattr(self._source.dataset, "degraded", None):  # it says that it is not what was asked for
            session.reporter.event("degraded", what="data", detail=detail)
        if self._adaptive and self._lag >= settings.window and self._leads:
            self._degraded(
                "plans",
                f"{self._lag} batches are prepared ahead and a window has {settings.window} iterations, so a plan "
                "shows only after the next decision; set a larger window, or let the loader prefetch less",
            )
        self._memory = self._limited_memory()
        atexit.register(self.close)

    def _before_sum(self, kind: str) -> None:
        self._gathers.before_sum(kind)

    @property
    def _framework_text(self) -> str:
        return f"{self.framework} {self.framework_version}"

    @abstractmethod
    def _arrive(self) -> Position:
        """Where the others are, for a worker that comes late; waits until they have taken it in."""

    @abstractmethod
    def _catch_up(self) -> None:
        """After `_arrive` and `_place`: go on where the others are."""

    @property
    def _lengths_code(self) -> int:
        """Checksum of the tokens of the samples; 0 where sizes are in samples."""
        return 0 if self._lengths is None else zlib.crc32(self._lengths.tobytes())

    def _limited_memory(self) -> WorkerMemory:
        """What fits into the memory of this worker, as far as the settings say."""
        settings = self._settings
        at_once = settings.at_once[self.rank] if self.rank < len(settings.at_once) else None
        limit = None if at_once is None else max(at_once // self._largest_sample, 1)
        ceiling = MemoryCeiling(limit, settings.memory == "auto")
        memory = self._make_memory(ceiling, partial(self._degraded, "memory"))
        if self._lengths is not None:
            memory.tokens_at_once = at_once
        return memory

    @property
    def _computes_in_parts(self) -> bool:
        """Whether calls of the model are divided, and so must know which batch they are of."""
        return self._memory.ceiling.is_needed or len(self._workers.here) > 1

    @property
    def _largest_sample(self) -> int:
        """Tokens of the longest sample; 1 where sizes are in samples."""
        return 1 if self._lengths is None else max(int(self._lengths.max()), 1)

    def _fresh_start(self, first_plan: Plan, seed: int) -> Position:
        """Where this training begins if it resumes nothing."""
        settings, account = self._settings, self._session.account
        reference_batch = settings.reference_batch or first_plan.global_batch
        pass_batch = first_plan.global_batch if self._lengths is None else 1  # tokens have no last incomplete batch
        if settings.sizes:  # of the cluster file, whose arbitrator goes on from the training before
            first_plan = account.plan or first_plan
            reference_batch = account.reference_batch or reference_batch
        return Position(
            iteration=0,
            cursor=Cursor(),
            plan=first_plan,
            seed=seed,
            epoch_samples=self._source.samples_per_pass(pass_batch),
            unit=settings.unit,
            reference_batch=reference_batch,
            pass_batch=pass_batch,
        )

    def _check_possible(self) -> None:
        """Raises TrainingError if the settings, the data and the framework do not go together."""
        settings = self._settings
        if len(self._workers.here) > 1 and not self.computes_for_several:
            raise TrainingError(
                f"this process computes for {len(self._workers.here)} workers, which is not possible in "
                f"{self.framework}: `dynamix rehearse` needs a script in torch"
            )
        if settings.memory == "auto" and not self.survives_lack_of_memory:
            raise TrainingError(
                f"the cluster file has memory: auto, which finds out by trial what fits; {self.framework} may hang or "
                "crash where an allocation fails, so say at_once: for the workers instead"
            )
        if isinstance(self._source, StreamSource) and len(self._workers.here) > 1:
            raise TrainingError(
                f"this process computes for {len(self._workers.here)} workers, each of which would read its own part "
                "of a stream; `dynamix rehearse` needs a data set with len(d) and d[i]"
            )
        if isinstance(self._source, StreamSource) and self._workers.later:
            raise TrainingError(
                "the cluster file has workers that come later (elastic.max_workers), and a stream takes none in: who "
                "reads what of it follows from its beginning; give a data set with len(d) and d[i], or remove them"
            )
        if isinstance(self._source, StreamSource) and settings.unit != "samples":
            raise TrainingError(
                f"batch.unit is {settings.unit} in the cluster file, which needs the length of every sample ahead; a "
                "stream has none, so remove batch.unit"
            )

    def _source_of(self, data: Any, seed: int = 0) -> DataSource:
        """Where batches of `data`, which the script passes, come from. `seed`: of their order."""
        return DataSetSource(data, self._fetch, self._settings.prefetch)

    def _make_sampler(self, seed: int) -> GlobalSampler:
        samples, smallest, order, lengths = self._samples, self._smallest_share(), self._source.order, self._lengths
        if lengths is None:
            return GlobalSampler(samples, seed, smallest, order)
        return TokenSampler(lengths, samples, seed, smallest, order, self._settings.unit == "padded_tokens")

    def _make_stream(self) -> BatchStream:
        load, here = self._loading.load, self._workers.here
        return BatchStream(self._source, load, self._sampler, here, self._switch.plan_at)

    def _load_with(self, source: DataSource) -> None:
        """From the next loop on, `source` loads the batches; the samples and their order stay. Collective.

        Raises TrainingError, on every worker, unless all do so here.
        """
        self._announce("a loop over a DataLoader with run.batch_sampler()")
        self._loading.close()
        self._loading = source
        key = f"{self._prefix}.depth{self._loaders}"
        self._switch.lag = self._lag = max(of_every_worker(self._comm, key, source.depth)) + self._taken.lag
        self._loaders += 1
        self._stream = self._make_stream()

    def _same_start(self, prefix: str) -> Position:
        """Give every worker rank 0's weights and optimizer, from a checkpoint if one is named; return its position.

        Raises CheckpointError, on every worker, if the checkpoint is unusable.
        """
        key = f"{prefix}.state"
        if self._comm.rank != 0:
            packed = self._comm.broadcast(key, b"")
            if packed.startswith(_REFUSED):
                raise CheckpointError(packed.removeprefix(_REFUSED).decode())
            return self._restore(io.BytesIO(packed))
        try:
            resume = self._settings.resume if not self._session.account.trainings else None  # the first one's
            start = self._from_checkpoint(resume) if resume else self._fresh
        except DynamixError as error:
            self._comm.broadcast(key, _REFUSED + str(error).encode())
            raise
        self._comm.broadcast(key, self._pack(start))
        return start

    def _from_checkpoint(self, path: Path) -> Position:
        """Put the newest valid checkpoint of `path` into model and optimizer; return its position."""
        path, packed = newest_valid_checkpoint(path, lambda detail: self._degraded("checkpoint", detail))
        self._read_from = path
        try:
            return self._for_this_run(self._restore(io.BytesIO(packed)))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _for_this_run(self, start: Position) -> Position:
        """`start`, of a checkpoint, with its plan as the workers and the cluster file of today allow it."""
        settings = self._settings
        plan = plan_for(start.plan, self._fresh.plan.batch_sizes, settings.bounds, settings.keep)
        if plan != start.plan:
            logger.warning("%s", resized(start.plan, plan))
        start = replace(
            start,
            reference_batch=start.reference_batch or self._fresh.reference_batch,
            pass_batch=start.pass_batch or self._fresh.pass_batch,
        )
        if settings.guards_rate or start.lr_guard == 1:
            return replace(start, plan=plan)
        logger.warning(
            "the checkpoint was trained with a guard that had left %g of the learning rate, which is not used: the "
            "cluster file has lr: %s",
            *(start.lr_guard, settings.lr),
        )
        return replace(start, plan=plan, lr_guard=1.0)

    def _place(self, start: Position) -> None:
        """Let training begin at `start`. Raises TrainingError if that is no place in this training."""
        settings = self._settings
        check_unit(start, settings.unit)
        self._reference_batch, self._pass_batch = start.reference_batch, start.pass_batch
        self._samples = self._source.samples_per_pass(start.pass_batch)
        reporter = self._session.reporter
        self.iteration, self._cursor = start.iteration, start.cursor
        self._session.account.iterations = max(self._session.account.iterations, start.iteration)
        self._switch = PlanSwitch(
            start.plan, self._lag, settings.bounds, settings.keep, settings.slot_sizes, self._workers.later
        )
        self._stream = self._batches_from(start)
        self._rate = LearningRate(settings.lr_rule, self._reference_batch, self.size, start.noise, start.lr_guard)
        self._guard = self._make_guard()
        self._worth = SizeWorth(start.units)
        self._reduction = Reduction()
        self._now = IterationInFlight()
        self._departures = Departures(settings.min_workers or 1)
        self._entries = Entries()
        self._givers: dict[Process, SumGiver] = {}  # to newcomers that follow this worker
        self._followed: set[Process] = set()  # newcomers that follow another one
        self._asked, self._not_trained = ScriptLimits(start.epochs_begun), start.not_trained
        self._taken = TakenAhead()
        self._applied_version = start.plan.version
        self._stall = StallWatch(self.rank, reporter, settings.timeouts)
        self._watch = self._session.make_watch(self._newest_sum)
        self._own_size = self._make_own_size(reporter) if settings.own_sizes else None
        here, account = self._workers.here, self._session.account
        self._observer = TrainingObserver(here, reporter, account, settings, start, self._watch, self._data_size)
        self._unclaimed = dict(start.registered)  # states of objects that the script has not registered yet
        self._start_hyperparameters = self._hyperparameters()

    def _tell_where_it_goes_on(self, start: Position, file: Path | None = None) -> None:
        """The training goes on from a checkpoint, in `file` or in one of the script's own; one worker tells so."""
        place, checkpoint = start.cursor, None if file is None else str(file.absolute())
        is_known = start.unit == "samples" and (start.epoch_samples or not place.epoch)
        done = place.epoch * start.epoch_samples + place.position - place.owed_samples - start.not_trained
        samples = done if is_known else None
        self._went_on_at = start.iteration
        where = {"iteration": start.iteration, "epoch": place.epoch, "samples": samples}
        self._session.reporter.event("went_on", checkpoint=checkpoint, **where)
        source = checkpoint or "the state that the script has loaded"
        note = f"note: training goes on from {source}, after {start.iteration:,} iterations, in epoch {place.epoch}"
        print(note, file=sys.stderr, flush=True)

    def _make_guard(self) -> RateGuard | None:
        tell = partial(self._degraded, "learning rate")
        return RateGuard(self._rate, tell) if self._settings.guards_rate else None

    def _make_own_size(self, reporter: Reporting) -> OwnSize:
        """What chooses the sizes of the workers of this process, which listens to their records."""
        from dynamix_ps.policy.stigmergy.settings import StigmergySettings
        from worker_hooks.own_size import OwnSize

        settings = self._settings
        assert settings.bounds is not None and settings.own_sizes is not None, "only a cluster file can ask for it"
        chosen = OwnSize(
            self._workers.here,
            settings.bounds,
            settings.micro_batches,
            settings.lr_rule,
            self._reference_batch,
            settings.seed,
            ring=not DATA_PLANES[settings.comm].has_servers,
            data_size=self._data_size,
            settings=StigmergySettings.of(settings.own_sizes),
        )
        reporter.listen(chosen.hear)
        return chosen

    def _batches_from(self, start: Position) -> Batches:
        """Raises TrainingError if `start` is no place in this data."""
        source = self._source
        if isinstance(source, StreamSource):
            smallest, plan_at = self._smallest_share(), self._switch.plan_at
            return source.batches(start, StreamWorker(self.rank, self.size, smallest, plan_at, self._report_reading))
        self._data_size = self._samples if self._lengths is None else int(self._lengths.sum())
        check_enough(self._data_size, start.plan, self._settings.unit)
        check_place(start, self._samples)
        check_order(start, source)
        self._sampler = self._make_sampler(start.seed)
        return self._make_stream()

    def _report_reading(self) -> None:
        """All workers tell what they have read of a stream. Collective."""
        if self._comm.size == 1:
            reports = [NOTHING_READ] * self.size
            reports[self.rank] = self._stream.report(used=False)
            self._stream.told(reports, (self.rank,))
        else:
            with self._watch.blocked():
                self._announce("for the next batch of a stream")

    def _newest_sum(self) -> NewestSum:
        passes, pushed = self._stream.passes(self._cursor), self._exchange.bytes_per_iteration
        return NewestSum(self._now.spent, passes, pushed)

    def _begin(self) -> None:
        """The script begins its loop over batches: from now on the place is what the iterations make it."""
        if self._began:
            return
        self._began = True
        if self._unclaimed and self._leads:
            names = ", ".join(self._unclaimed)
            self._degraded(
                "checkpoint",
                f"it has the state of {names}, which neither run.register() nor ema_decay asks for; it is not used",
            )
        if not self._follows:
            self._session.connect(self._switch.held)

    def _degraded(self, what: str, detail: str) -> None:
        self._session.reporter.tell("degraded", {"what": what, "detail": detail})

    def close(self) -> None:
        """End this training: its hooks leave model and optimizers. Also runs at exit. Collective, but for who has left.

        Afterwards the script may attach another training.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._now.end()
        try:
            if not self._comm.left:
                self._announce("run.close(), or its script has ended,")
        except DynamixError as error:
            print(f"error: {error}", file=sys.stderr)
            self.abandon(error)
            failure.exit_now(error.exit_code)
        if self._went_on_at and self._went_on_at == self.iteration:
            print("note: nothing was left to train: the script asks for no more iterations", file=sys.stderr)
        self._detach()
        self._loading.close()
        self._stream.close()
        self._exchange.close()
        for giver in self._givers.values():
            giver.close()
        failure.forget(self)
        TERMINATION.forget(self)
        account = self._session.account
        account.plan, account.reference_batch = self._switch.newest_scheduled, self._reference_batch
        self._session.close()

    def abandon(self, error: BaseException) -> None:
        """Record why this worker fails; do not wait for the other workers."""
        self._closed = True
        self._session.abandon(error, self.iteration)

    def explained(self, error: BaseException) -> BaseException:
        """`error`, or one that says what to do: if memory has run out, or a shape is of the sizes before."""
        samples, fitted = self._samples_in_hand, self._largest_batch
        if not is_out_of_memory(error):
            return of_sizes(error, samples, self._samples_before) or error
        if not samples:
            return error
        known = f"{fitted} fitted before" if fitted else "no batch fitted before"
        smaller = fitted if 0 < fitted < samples else max(samples // 2, 1)
        advice = (
            "memory: auto divides what the model computes, and this is outside of it, or a batch that fitted needs "
            f"more now; set at_once or `max` below {samples} for this worker"
            if self._settings.memory == "auto"
            else f"set at_once: {self._largest_sample * smaller} for this worker"
            + (", or memory: auto," if self.survives_lack_of_memory else "")
            + " in the cluster file"
        )
        return TrainingError(
            f"worker {self.rank} is out of memory in iteration {self.iteration} with a batch of {samples} samples; "
            f"{known}: {advice} ({first_line(error)})"
        )
