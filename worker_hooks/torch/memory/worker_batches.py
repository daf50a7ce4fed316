"""The batches of several workers in one process: computed as one, and worker by worker where that makes a difference.

It makes one in two cases. Where gradient norms are measured, every worker needs its own. And batch norm compares the
samples of a batch, so each worker's must stay among themselves. Then the model's forward runs for one worker after the
other, as it does for micro-batches, and the script sees the outputs of all. All graphs are kept, so nothing is computed
twice. The first batch is divided too: a model that cannot be divided is refused before a weight changes.

A number that a model returns, such as its loss, is taken for a mean over the samples. Each worker's own counts by its
share of the batch, as in a real run, so such a model always runs worker by worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from dynamix_ps.errors import TrainingError
from worker_hooks.memory.divided_call import OutputParts
from worker_hooks.memory.memory_ceiling import MemoryCeiling, WorkerMemory
from worker_hooks.torch.memory.micro_batches import TorchDividedBatch, TorchMicroBatchedForward
from worker_hooks.torch.memory.repeatable import ForwardState
from worker_hooks.torch.memory.running_statistics import RunningStatistics, batch_norms

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.torch.parameters import TorchParameters

Gradients = dict[torch.nn.Parameter, torch.Tensor]


class WorkerBatches(WorkerMemory):
    """Divides the batches of a process among its workers. The memory is that of one process, without a ceiling."""

    def __init__(
        self,
        parameters: TorchParameters,
        in_flight: Callable[[], IterationInFlight],
        here: range,
        measures: Callable[[], bool],
    ) -> None:
        """`here`: ranks of the workers. `measures`: whether the coming sum measures gradient norms."""
        super().__init__(MemoryCeiling(None, searches=False), lambda: 1, in_flight, lambda sentence: None)
        self._parameters, self._here, self._measures = parameters, here, measures
        self._gradients: dict[int, Gradients] = {}  # of each worker by its place, as far as models have computed them
        self._of_iteration = -1  # those gradients
        self.joins_means = False  # a model returns numbers

    def divides(self, model: torch.nn.Module, always: bool) -> bool:
        """Whether a forward pass of `model` now is to run worker by worker. `always`: wherever gradients are wanted."""
        if not self.samples_in_flight():
            return False
        wanted = always and torch.is_grad_enabled()
        return wanted or self.measures_norms or any(norm.training for norm in batch_norms(model))

    @property
    def measures_norms(self) -> bool:
        """Whether every worker's gradient of a forward pass now is wanted."""
        return torch.is_grad_enabled() and self._measures()

    @property
    def bounds(self) -> dict[int, tuple[int, int]]:
        """Begin and end in the batch at hand, by place of the worker; only of workers that have samples."""
        sizes = self._in_flight().batch.step.sizes[self._here.start : self._here.stop]
        ends = np.cumsum([0, *sizes]).tolist()
        return {place: (begin, end) for place, (begin, end) in enumerate(pairwise(ends)) if begin < end}

    def add(self, place: int, parameters: Sequence[torch.nn.Parameter], found: Sequence[torch.Tensor | None]) -> None:
        """The backward pass of a model has found these gradients for a worker."""
        if not self._measures():
            return
        iteration = self._in_flight().batch.iteration
        if iteration != self._of_iteration:
            self._gradients, self._of_iteration = {}, iteration
        mine = self._gradients.setdefault(place, {})
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                mine[parameter] = mine[parameter] + gradient if parameter in mine else gradient

    def check_called(self) -> None:
        """Raises TrainingError if the present batch was to be divided and went past the models, or cannot be."""
        now = self._in_flight()
        if self.joins_means and (now.units is not None or now.reduction == "sum"):
            raise TrainingError(
                'run.backward(loss, weight=...), or reduction="sum", with a model that returns its loss: what the part '
                "of each worker counts with is not known, so a rehearsal cannot join their losses; call the model "
                "without its targets, and compute the loss of the whole batch in the script"
            )
        if self._called_in == self._in_flight().batch.iteration:
            return
        if self._called_in < 0 or self._measures() or self._parameters.smallest_share > 1:
            raise TrainingError(
                "the script has not called a model that it gave to attach(), so its batch cannot be divided among the "
                f"{len(self._here)} workers of this rehearsal; call model(inputs) itself"
            )

    def squared_norms(self, gradient: Mapping[torch.nn.Parameter, torch.Tensor], weight: float) -> list[float]:
        """|g_i|^2 of every worker; NaN for one without samples.

        What models have computed is c_i for worker i, its share s_i of the batch times its gradient. The rest of the
        gradient, r = g - sum(c_i), comes from what does not depend on samples, such as a penalty on weights, and is the
        same on every worker: g_i = c_i / s_i + r.

        Args:
            gradient: `weight` times g, of all trained parameters.
        """
        found, self._gradients = self._gradients, {}
        shares = {place: share for place, share in enumerate(self._in_flight().shares(self._here)) if share}
        squares = dict.fromkeys(shares, 0.0)
        for parameter, weighted in gradient.items():
            known = {place: mine[parameter] for place, mine in found.items() if parameter in mine}
            parts = {place: one.to(weighted.dtype) for place, one in known.items()}
            rest = weighted / weight - sum(parts.values())
            for place, share in shares.items():
                own = rest + parts[place] / share if place in parts else rest
                squares[place] += float(torch.linalg.vector_norm(own)) ** 2
        return [squares.get(place, math.nan) for place in range(len(self._here))]


class ForwardOfWorkers(TorchMicroBatchedForward):
    """Takes the place of `model.forward`."""

    _memory: WorkerBatches
    _is_first = True
    _always = True  # divided; unless the first batch shows that all outputs are rows

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a model that was attached first and compiled later
            return self._outside_of_graphs(*args, **kwargs)
        return self._of_workers(*args, **kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _outside_of_graphs(self, *args: Any, **kwargs: Any) -> Any:
        return self._of_workers(*args, **kwargs)

    def _of_workers(self, *args: Any, **kwargs: Any) -> Any:
        if TorchMicroBatchedForward._busy or not self._memory.divides(self._model, self._always):
            return self._plain(*args, **kwargs)
        samples = self._memory.samples_in_flight()
        batch = _BatchOfWorkers(self._memory, self._parameters, self._model, self._plain, args, kwargs, samples)
        if not batch.is_divisible:
            raise TrainingError(
                f"none of the tensors that the script gives to {type(self._model).__name__} has the {samples} rows of "
                "this batch, so it cannot be divided among the workers of this rehearsal; call the model with the "
                "whole batch in the first dimension"
            )
        TorchMicroBatchedForward._busy = True
        try:
            outputs = batch.forward(list(self._memory.bounds.values()))
            if self._is_first:
                batch.check_means(outputs)
                self._is_first, self._always = False, batch.has_means
        finally:
            TorchMicroBatchedForward._busy = False
        self._memory.joins_means |= batch.has_means
        return outputs


class _BatchOfWorkers(TorchDividedBatch):
    """One call of a model, with a micro-batch for every worker."""

    keeps_graphs = True
    _memory: WorkerBatches
    _parts: _PartsOfWorkers

    def forward(self, parts: Sequence[tuple[int, int]]) -> Any:
        self._parts = _PartsOfWorkers(self.model, [(end - begin) / self._samples for begin, end in parts])
        self._places = {begin: place for place, (begin, _) in self._memory.bounds.items()}
        self._statistics = RunningStatistics(batch_norms(self.model))
        joined = super().forward(parts) if self._memory.measures_norms else self._in_one_graph(parts)
        self._statistics.deliver()
        return joined

    def _in_one_graph(self, parts: Sequence[tuple[int, int]]) -> Any:
        """The outputs of all workers, where nobody asks for the gradient of one."""
        found: list[list[Any]] = []
        for begin, end in parts:
            pairs = zip(self._leaves, self._rows, strict=True)
            self._statistics.restart()
            outputs, form = self._outputs([leaf[begin:end] if has_rows else leaf for leaf, has_rows in pairs])
            self._statistics.take((end - begin) / self._samples)
            self._parts.check(outputs, end - begin)
            found.append(outputs)
        joined = [self._parts.joined(parts_of_one) for parts_of_one in zip(*found, strict=True)]
        return pytree.tree_unflatten(joined, form)

    @property
    def has_means(self) -> bool:
        """Whether the model has returned numbers for the batch."""
        return bool(self._parts.totals)

    def check_means(self, joined: Any) -> None:
        """Raises TrainingError if a number of the model is a sum over the samples rather than a mean."""
        if not self.has_means:
            return
        with ForwardState(self.model).restored(), torch.no_grad():
            whole, _ = self._outputs(self._leaves)
        means = [(of_all, one) for of_all, one in zip(whole, pytree.tree_leaves(joined), strict=True) if _is_mean(one)]
        for (of_all, mean), total in zip(means, self._parts.totals, strict=True):
            if abs(of_all - total) < abs(of_all - mean):
                raise TrainingError(
                    f"{type(self.model).__name__} returned a number that is a sum over the samples "
                    f"({float(of_all):.4g} for {self._samples}), and a rehearsal can only join means of workers; "
                    "return the mean, or the outputs"
                )

    def _part_of(self, gradient: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        return gradient * ((end - begin) / self._samples) if _is_mean(gradient) else gradient[begin:end]

    def _first_pass(self, begin: int, end: int, has_graph: bool) -> tuple[list[Any], list[Any], Any]:
        self._statistics.restart()
        passed = super()._first_pass(begin, end, has_graph)
        self._statistics.take((end - begin) / self._samples)
        return passed

    def _gradients_of(
        self, begin: int, end: int, state: ForwardState | None, wanted: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        found = super()._gradients_of(begin, end, state, wanted)
        self._memory.add(self._places[begin], self._parameters, found[len(self._asking) :])
        return found


class _PartsOfWorkers(OutputParts):
    """What a model returns for the part of every worker: rows, or means over its samples.

    Attributes:
        totals: sums of the means of all workers, for each such output.
    """

    kind, or_else = "workers' parts", ""

    def __init__(self, model: torch.nn.Module, shares: Sequence[float]) -> None:
        """`shares`: of the workers in the batch."""
        super().__init__(model, torch.Tensor, torch.cat)
        self._shares = shares
        self.totals: list[torch.Tensor] = []

    def check(self, outputs: Sequence[Any], samples: int) -> None:
        super().check([one for one in outputs if not _is_mean(one)], samples)

    def joined(self, parts: tuple[Any, ...]) -> Any:
        if not _is_mean(parts[0]):
            return super().joined(parts)
        self.totals.append(torch.stack([one.detach() for one in parts]).sum())
        return sum(share * one for share, one in zip(self._shares, parts, strict=True))


def _is_mean(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and not output.dim() and output.is_floating_point()
