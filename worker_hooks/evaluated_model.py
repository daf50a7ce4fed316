"""What a script measures beside the iterations, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dynamix_ps.errors import TrainingError
from dynamix_ps.run_record.evaluations import AVERAGED
from worker_hooks.attached_model import AttachedModel
from worker_hooks.evaluation import (
    Share,
    directions,
    evaluate_share,
    in_form_of,
    means,
    packed,
    present,
    samples_of,
    weighted_share,
)

EVALUATED_AT_ONCE = 256  # samples


class EvaluatedModel(AttachedModel):
    """An attached model with `evaluate`, `averaged`, `mean`, `record`, `paused` and `listen`."""

    _averages_are_in_place = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`with run.paused():` around what is not training, so that it does not count as training time."""
        with self._observer.paused():
            yield

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """`with run.averaged():` around what is done with the averaged weights: saving, exporting, drawing samples.

        In here they are the weights of the models; afterwards these have their own back, bit for bit. Any worker may
        do it. Does not count as training time.

        Raises TrainingError where no weights are averaged: `attach(..., ema_decay=...)`, in torch.
        """
        self._check_own_weights("run.averaged()")
        with self.paused(), self._averages_in_place():
            self._averages_are_in_place = True
            try:
                yield
            finally:
                self._averages_are_in_place = False

    def _check_own_weights(self, what: str) -> None:
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
        batch_size: int | None = None,
        *,
        averaged: bool = False,
        higher_is_better: str | Sequence[str] = (),
        lower_is_better: str | Sequence[str] = (),
    ) -> Any:
        """Means per sample over `data`, computed by all workers together, each on its share. Collective.

        Does not count as training time.

        Args:
            data: a map-style data set or a DataLoader, in torch also `shards(...)`; the same on every worker.
            score: returns sums over the batch that it gets, best as a dict: `{"accuracy": ..., "loss": ...}`. One
                number or a tuple of numbers is recorded as `value`, or as `value_1`, `value_2` and so on. A batch that
                is a tuple comes as positional arguments, a dict as keyword arguments, all else as one argument.
            batch_size: samples that `score` gets at once; without it, the loader's, or 256.
            averaged: with the averaged weights of `attach(..., ema_decay=...)`. Recorded as `averaged_accuracy` and so
                on, beside the values of the weights themselves.
            higher_is_better: names of values whose direction their name does not tell.
            lower_is_better: likewise.

        Returns:
            The means, in the form in which `score` returns its sums.

        Raises:
            TrainingError: the data set is empty or differs between workers, `score` does not return named sums, or no
                weights are averaged.
        """
        self._check_own_weights("run.evaluate()")
        source = self._source_of(data)
        source.check()
        size = batch_size or source.batch_size or EVALUATED_AT_ONCE
        there, complete = self._exchange.present, False
        while not complete:  # once, unless a worker that has a part is lost meanwhile
            # Parts are in proportion to the batch sizes, so that fast and slow workers finish together.
            shares = self._shares_of(there)
            length, batches = source.part(shares, self._workers.here, size)
            self._announce(f"run.evaluate({'averaged=True' if averaged else ''}){source.list_of_parts}")
            with self.averaged() if averaged else self.paused():
                with self._inference():
                    share = evaluate_share(length, batches, score, self._number)
                source.close()
                known = directions(share.sums, higher_is_better, lower_is_better)
                total = self._comm.total(self._evaluation_key, packed(share, self._comm.rank, self._comm.size))
            there = self._workers.slots_of(present(total, self._comm.size))
            complete = not any(part and slot not in there for slot, part in enumerate(shares))
        values = means(total, share, self._comm.size)
        if self._leads:
            samples, label = samples_of(total), AVERAGED if averaged else ""
            told = {label + name: value for name, value in values.items()}
            ways = {label + name: higher for name, higher in known.items()}
            self._observer.evaluated(self.iteration, self.epoch, told, ways, samples, self._trained_samples)
        return in_form_of(share.scores, values)

    def _shares_of(self, there: Sequence[int]) -> list[int]:
        """What the workers in the slots `there` score of a data set, in proportion to their batch sizes."""
        sizes = self._switch.newest_scheduled.batch_sizes
        shares = [size if slot in there else 0 for slot, size in enumerate(sizes)]
        return shares if any(shares) else [int(slot in there) for slot in range(len(sizes))]

    def mean(self, values: Any, weight: float = 1.0) -> Any:
        """The mean over all workers of numbers that the script has measured, the same on every worker. Collective.

            loss = run.mean(total / len(part), weight=len(part))   # `part`: what this worker has measured it on

        Args:
            values: a dict of named numbers, a tuple or list of numbers, or one number; the same names everywhere.
            weight: what those of this worker count with: sum(weight * value) / sum(weight). Without it each worker
                counts the same. With 0 they do not count, and may be NaN.

        Returns:
            The means, in the form of `values`.

        Raises:
            TrainingError: on all workers, if another one calls something else or has other names, if `values` or
                `weight` are unusable on one, or if no worker has a weight.
        """
        refused, share = "", Share(0, 0.0, {}, values)
        try:
            share = weighted_share(values, float(weight), self._number)
        except TrainingError as error:
            refused = str(error)
        self._announce(refused or f"run.mean() of {', '.join(map(repr, share.sums))}")
        if refused:
            raise TrainingError(refused)
        total = self._comm.total(self._evaluation_key, packed(share, self._comm.rank, self._comm.size))
        if not total[0]:
            raise TrainingError("run.mean() got weight=0 on every worker, so its mean is over nothing")
        return in_form_of(values, means(total, share, self._comm.size))

    def record(
        self,
        values: Mapping[str, float],
        *,
        higher_is_better: str | Sequence[str] = (),
        lower_is_better: str | Sequence[str] = (),
    ) -> None:
        """Record what the script has measured by itself of the model as it is, as `evaluate` does with its means.

        Only worker 0's values are recorded. Names and directions are those of `evaluate`.

        Raises TrainingError for a direction of a name that is not in `values`.
        """
        known = directions(values, higher_is_better, lower_is_better)
        if self._leads and values:
            numbers = {name: float(value) for name, value in values.items()}
            self._observer.evaluated(self.iteration, self.epoch, numbers, known, None, self._trained_samples)

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """Give `listener` every event and every window record of this worker from now on, as in its file of the run
        folder.

        It is called in a thread of its own, so it costs the training no time. Its first error ends it, and the summary
        says so. Loggers: `dynamix_ps.integrations.loggers`.
        """
        self._session.reporter.listen(listener)
