"""How many samples a worker computes at once in MXNet, and which calls of its net are to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import TYPE_CHECKING

from worker_hooks.loading.global_generators import derived_seed
from worker_hooks.memory.memory_ceiling import MemoryCeiling, WorkerMemory

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.mxnet.parameters import MXNetParameters


class MXNetMemory(WorkerMemory):
    """That of the net of a training."""

    def __init__(
        self,
        ceiling: MemoryCeiling,
        parameters: MXNetParameters,
        in_flight: Callable[[], IterationInFlight],
        tell: Callable[[str], None],
        steps: Callable[[], int],
        seed: tuple[int, ...],
    ) -> None:
        """`steps`: of the trainer so far. `seed`: of the random numbers in micro-batches."""
        super().__init__(ceiling, lambda: parameters.smallest_share, in_flight, tell)
        self.steps, self._seed = steps, seed
        self._seeds = count()
        self._divided: list[Callable[[], Iterator[None]]] = []  # of the calls in the present batch

    def samples_in_flight(self) -> int:
        before, samples = self._called_in, super().samples_in_flight()
        if self._called_in != before:
            self._divided.clear()
            self._seeds = count()
        return samples

    def next_seed(self) -> int:
        """Of 31 bits, another one for every micro-batch."""
        return derived_seed(*self._seed, self._called_in, next(self._seeds)) >> 1

    def divided(self, backward: Callable[[], Iterator[None]]) -> None:
        """A call is computed in micro-batches; `backward` repeats them, each with its backward pass."""
        self._divided.append(backward)

    def repetitions(self) -> Iterator[None] | None:
        """The backward passes of all micro-batches, which follow that of the loss; none if there are no such."""
        return chain.from_iterable(backward() for backward in tuple(self._divided)) if self._divided else None
