"""A batch that does not fit into memory at once: the model computes it in micro-batches, exactly.

The script calls `model(inputs)` once, with the whole batch, and gets the outputs of the whole batch. In between, the
model's forward runs for one micro-batch after the other, and keeps nothing but outputs; the last one keeps its graph
too. The backward pass repeats the others, now with their graphs, and adds all gradients up. So loss, metrics, clipping,
GradScaler, schedulers and counters of the script see one batch and one step, as ever. The price is one more forward
pass of all micro-batches but one.

With `memory: auto` a number of samples that is not proven to fit is tried first: forward and backward pass of the first
samples, whose results are thrown away. What fails here, in a forward pass or in the repetition of one, is repeated with
smaller micro-batches. Nothing is lost: no gradient leaves before all of the batch are there.

A batch that may end early (parts_of_rows.py) has its parts here too. Where memory has room for all of it, all graphs
are kept, and nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.script_errors import first_line, is_out_of_memory
from worker_hooks.memory.memory_ceiling import WorkerMemory, pieces
from worker_hooks.torch.memory.divided_batch import TorchDividedBatch, free_memory
from worker_hooks.torch.memory.repeatable import ForwardState
from worker_hooks.torch.parameters import TorchParameters

if TYPE_CHECKING:
    from worker_hooks.torch.memory.parts_of_rows import PartsOfRows


class TorchMicroBatchedForward:
    """Takes the place of `model.forward`."""

    _busy = False  # a model inside of another one is part of its micro-batches

    def __init__(
        self,
        memory: WorkerMemory,
        parameters: TorchParameters,
        model: torch.nn.Module,
        of_rows: PartsOfRows | None = None,
    ) -> None:
        """`of_rows`: parts of batches that may end early."""
        self._memory, self._parameters, self._model, self._of_rows = memory, parameters, model, of_rows
        self._own = model.__dict__.get("forward")  # of the instance, as torch.compile sets one
        self._plain: Callable[..., Any] = model.forward
        self.__wrapped__ = self._plain  # for inspect.signature
        model.forward = self

    def remove(self) -> None:
        """Give the model its own forward back."""
        if self._own is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.forward = self._own

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, or a pickle, has the forward of its class."""
        return getattr, (self._model, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        memory, ceiling, of_rows = self._memory, self._memory.ceiling, self._of_rows
        if not ceiling.is_needed and torch.compiler.is_compiling():  # a model that was compiled after attach()
            return self._plain(*args, **kwargs)
        samples = memory.samples_in_flight()
        fits = not ceiling.searches and ceiling.is_proven(samples)
        if fits and (of_rows is None or of_rows.parts.number() == 1):
            return self._plain(*args, **kwargs)
        if not samples or TorchMicroBatchedForward._busy or not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        batch = TorchDividedBatch(memory, self._parameters, self._model, self._plain, args, kwargs, samples)
        TorchMicroBatchedForward._busy = True
        try:
            parts = 1 if of_rows is None else of_rows.parts_of(batch)
            if (fits and parts == 1) or not batch.is_divisible:
                return self._plain(*args, **kwargs)
            return self._divided(batch, samples, parts)
        finally:
            memory.tell_failures()
            TorchMicroBatchedForward._busy = False

    def _divided(self, batch: TorchDividedBatch, samples: int, parts: int) -> Any:
        """`parts`: of the batch at least; there are more where memory asks for more."""
        memory, ceiling = self._memory, self._memory.ceiling
        smallest = memory.smallest_micro_batch()
        before = ForwardState(self._model, buffers=ceiling.searches)
        while True:
            at_once = ceiling.at_once(samples, smallest)
            try:
                if not ceiling.is_proven(at_once):
                    with before.restored():
                        batch.try_out(at_once)
                    ceiling.fitted(at_once)
                elif at_once >= samples and parts == 1:
                    return batch.whole()
                else:
                    return batch.forward(pieces(samples, at_once, smallest, parts), keeps_graphs=at_once >= samples)
                continue
            except Exception as error:
                is_of_parts = isinstance(error, TrainingError) and parts > 1  # it may be right without them
                if not is_of_parts and not (ceiling.searches and is_out_of_memory(error)):
                    raise
                told = first_line(error)
            before.restore()
            batch.drop_graphs()
            if is_of_parts and self._of_rows is not None:
                self._of_rows.parts.refuse(told)
                parts = 1
                continue
            free_memory()
            memory.did_not_fit(at_once, told)
