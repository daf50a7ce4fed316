"""Decides when a training ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, get_args

from dynamix_ps.run_record.evaluations import higher_is_better

MetricName = Literal["accuracy", "loss", "bpb"]  # bpb: bits per byte
METRICS: tuple[MetricName, ...] = get_args(MetricName)
AVERAGED = 3  # evaluations, because single ones scatter by half a point


class Batches(Protocol):
    """A run of any framework."""

    def batches(self, epochs: int | None = None) -> Iterator[Any]: ...


class Goal:
    """`epochs` passes over the data, then more until the target is reached.

    Args:
        epochs: the smallest number of passes.
        most_epochs: the largest number of passes.
        metric: what the target is about.
        target: to reach on the test data, as the mean of AVERAGED evaluations in a row. None: nothing is good enough.
    """

    def __init__(self, epochs: int, most_epochs: int, metric: MetricName, target: float | None) -> None:
        self._epochs = epochs
        self._most_epochs = most_epochs
        self._metric = metric
        self._target = target
        self._newest: deque[float] = deque(maxlen=AVERAGED)
        self._met = False

    def see(self, values: Mapping[str, float]) -> None:
        """Call with the means of every evaluation."""
        self._newest.append(values[self._metric])
        if self._target is not None:
            mean = sum(self._newest) / len(self._newest)
            self._met |= mean >= self._target if higher_is_better(self._metric) else mean <= self._target

    def batches(self, run: Batches) -> Iterator[Any]:
        """Batches of `epochs` passes, then of more passes while the target is not reached."""
        yield from run.batches(epochs=self._epochs)
        if self._met or self._most_epochs == self._epochs:
            return
        for batch in run.batches(epochs=self._most_epochs):
            yield batch
            if self._met:
                return
