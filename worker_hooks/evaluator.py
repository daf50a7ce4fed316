"""What a script measures beside the iterations, and who is told of it. Run has what each call is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dynamix_ps.errors import TrainingError

if TYPE_CHECKING:
    from worker_hooks.adapter import Adapter
    from worker_hooks.data import Data
    from worker_hooks.observe.training_observer import TrainingObserver
    from worker_hooks.plans import Plans
    from worker_hooks.progress import TrainingPlace
    from worker_hooks.session import Session
    from worker_hooks.sums import Sums

EVALUATED_AT_ONCE = 256  # samples


class Evaluator:
    """`evaluate`, `averaged`, `mean`, `record` and `paused` of one training."""

    def __init__(
        self,
        session: Session,
        adapter: Adapter,
        data: Data,
        plans: Plans,
        progress: TrainingPlace,
        sums: Sums,
        observer: TrainingObserver,
    ) -> None:
        self._comm, self._workers, self._settings, self._adapter = (
            session.comm,
            session.workers,
            session.settings,
            adapter,
        )
        self._data, self._plans, self._progress, self._sums, self._observer = data, plans, progress, sums, observer
        self._averages_are_in_place = False

    def declare(self) -> None:
        """Name the sum of evaluations. At the same place on all workers."""
        self._comm.declare(self._key)

    @property
    def _key(self) -> str:
        return f"{self._sums.prefix}.evaluation"

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The weights of the models are averages, which does not count as training time."""
        self.check_own_weights("run.averaged()")
        with self._observer.paused(), self._adapter.averages_in_place():
            self._averages_are_in_place = True
            try:
                yield
            finally:
                self._averages_are_in_place = False

    def check_own_weights(self, what: str) -> None:
        """Raises TrainingError for `what` inside of `with run.averaged():`."""
        if self._averages_are_in_place:
            raise TrainingError(
                f"{what} inside of `with run.averaged():`, where the models have averages in place of their weights; "
                "do it before or after the block"
            )

    def evaluate(
        self,
        data: Any,
        score: Callable[..., Any],
        batch_size: int | None,
        averaged: bool,
        higher_is_better: str | Sequence[str],
        lower_is_better: str | Sequence[str],
    ) -> Any:
        """`run.evaluate(...)`."""
        from dynamix_ps.run_record.evaluations import AVERAGED
        from worker_hooks.loading import evaluation

        self.check_own_weights("run.evaluate()")
        adapter, sums, here = self._adapter, self._sums, self._workers.here
        source = adapter.source_of(data, self._settings, like=self._data.source)
        source.check()
        size = batch_size or source.batch_size or EVALUATED_AT_ONCE
        there, complete = sums.exchange.trailer.present, False
        while not complete:  # once, unless a worker that has a part is lost meanwhile
            # Parts are in proportion to the batch sizes, so that fast and slow workers finish together.
            shares = self._plans.shares(there)
            length, batches = source.part(shares, here, size)
            sums.announce(f"run.evaluate({'averaged=True' if averaged else ''}){source.list_of_parts}")
            with self.averaged() if averaged else self._observer.paused():
                with adapter.inference():
                    share = evaluation.evaluate_share(length, batches, score, adapter.number)
                source.close()
                known = evaluation.directions(share.sums, higher_is_better, lower_is_better)
                total = self._comm.total(self._key, evaluation.packed(share, self._comm.rank, self._comm.size))
            there = self._workers.slots_of(evaluation.present(total, self._comm.size))
            complete = not any(part and slot not in there for slot, part in enumerate(shares))
        values = evaluation.means(total, share, self._comm.size)
        if sums.leads:
            label = AVERAGED if averaged else ""
            told = {label + name: value for name, value in values.items()}
            ways = {label + name: higher for name, higher in known.items()}
            self._tell(told, ways, evaluation.samples_of(total))
        return evaluation.in_form_of(share.scores, values)

    def _tell(self, values: Mapping[str, float], higher_is_better: Mapping[str, bool], samples: int | None) -> None:
        progress = self._progress
        epoch, trained = progress.cursor.epoch, progress.trained_samples
        self._observer.evaluated(progress.iteration, epoch, values, higher_is_better, samples, trained)

    def mean(self, values: Any, weight: float) -> Any:
        """`run.mean(values, weight)`."""
        from worker_hooks.loading.evaluation import Share, in_form_of, means, packed, weighted_share

        refused, share = "", Share(0, 0.0, {}, values)
        try:
            share = weighted_share(values, float(weight), self._adapter.number)
        except TrainingError as error:
            refused = str(error)
        self._sums.announce(refused or f"run.mean() of {', '.join(map(repr, share.sums))}")
        if refused:
            raise TrainingError(refused)
        total = self._comm.total(self._key, packed(share, self._comm.rank, self._comm.size))
        if not total[0]:
            raise TrainingError("run.mean() got weight=0 on every worker, so its mean is over nothing")
        return in_form_of(values, means(total, share, self._comm.size))

    def record(
        self,
        values: Mapping[str, float],
        higher_is_better: str | Sequence[str],
        lower_is_better: str | Sequence[str],
    ) -> None:
        """`run.record(...)`."""
        from worker_hooks.loading.evaluation import directions

        known = directions(values, higher_is_better, lower_is_better)
        if self._sums.leads and values:
            self._tell({name: float(value) for name, value in values.items()}, known, None)
