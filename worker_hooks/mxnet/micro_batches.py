"""Micro-batches in MXNet: a batch of more than `at_once` samples is computed in parts, exactly.

The script calls `net(inputs)` once, with the whole batch, and gets the outputs of the whole batch. In between, the
forward pass of the net runs for one micro-batch after the other, and keeps nothing but outputs. These are variables of
their own: the backward pass of the loss ends there. Then the forward pass of every micro-batch is repeated, with a
graph, and its backward pass begins with the gradients of its outputs. The price is one more forward pass.

MXNet does not tell the state of its random generator. So every micro-batch seeds it, and the repetition draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Block
from mxnet.ndarray import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks.memory.divided_call import SAME, OutputParts, indivisible, not_repeatable, weights_changed
from worker_hooks.memory.memory_ceiling import pieces
from worker_hooks.mxnet.memory import MXNetMemory

_BOUND = "leave at_once out, and bound the size of the worker by `max`"


class MXNetMicroBatchedForward:
    """Takes the place of `net.forward`."""

    def __init__(self, memory: MXNetMemory, net: Block) -> None:
        self._memory, self._net = memory, net
        self._plain: Callable[..., Any] = net.forward
        net.forward = self

    def remove(self) -> None:
        """Give the net its own forward back."""
        del self._net.forward

    def __call__(self, *args: Any) -> Any:
        memory, samples = self._memory, self._memory.samples_in_flight()
        if not samples or not autograd.is_recording() or memory.ceiling.is_proven(samples):
            return self._plain(*args)
        batch = MXNetDividedBatch(memory, self._net, self._plain, args, samples)
        return batch.forward() if batch.is_divisible else self._plain(*args)


class MXNetDividedBatch:
    """One call of a net with a batch, while autograd records."""

    def __init__(
        self, memory: MXNetMemory, net: Block, plain: Callable[..., Any], args: tuple[Any, ...], samples: int
    ) -> None:
        self._memory, self._net, self._plain, self._args, self._samples = memory, net, plain, args, samples
        arrays = [leaf for leaf in leaves_of(args) if isinstance(leaf, NDArray)]
        self.is_divisible = any(self._has_rows(one) for one in arrays)
        if not self.is_divisible and not memory.ceiling.is_proven(max(map(_rows, arrays), default=0)):
            raise indivisible(net, samples, "arrays")
        if self.is_divisible and any(map(_has_gradient, arrays)):
            raise TrainingError(
                f"this batch of {samples} samples exceeds at_once, and an array that the script gives to "
                f"{type(net).__name__} has a gradient of its own, which micro-batches do not give in MXNet; call the "
                f"net with data alone, or {_BOUND}"
            )
        self._train_mode = autograd.is_training()
        self._steps = memory.steps()
        self._pieces: list[tuple[int, int, int]] = []  # begin, end, seed
        self._outputs: list[Any] = []  # of the whole batch

    def forward(self) -> Any:
        """The outputs of the whole batch. The backward pass repeats the micro-batches one by one."""
        memory, found = self._memory, []
        of_parts = OutputParts(self._net, NDArray, lambda parts: mx.nd.concat(*parts, dim=0))
        for begin, end in pieces(self._samples, memory.ceiling.at_once(self._samples), memory.smallest_micro_batch()):
            seed = memory.next_seed()
            self._pieces.append((begin, end, seed))
            mx.random.seed(seed)
            with autograd.pause(train_mode=self._train_mode):
                outputs = self._plain(*self._part(begin, end))
                mx.nd.waitall()  # or several micro-batches would be in memory
            found.append(leaves_of(outputs))
            of_parts.check(found[-1], end - begin)
        with autograd.pause():
            self._outputs = [of_parts.joined(parts) for parts in zip(*found, strict=True)]
            for one in filter(_is_floating, self._outputs):
                one.attach_grad()
        memory.divided(self.backward)
        joined = iter(self._outputs)
        return mapped(outputs, lambda _: next(joined))

    def backward(self) -> Iterator[None]:
        """Backward passes of the net, for the gradients that the loss has given to the outputs. After each of them the
        gradients of the parameters are those of one micro-batch."""
        wanted = [number for number, one in enumerate(self._outputs) if _is_floating(one) and one._fresh_grad]
        if wanted and self._steps != self._memory.steps():
            raise weights_changed(self._net, "trainer.step()")
        for begin, end, seed in self._pieces if wanted else ():
            mx.random.seed(seed)
            with autograd.record(train_mode=self._train_mode):
                outputs = leaves_of(self._plain(*self._part(begin, end)))
            with autograd.pause():
                self._check_same(outputs, begin, end)
                asked = [
                    (outputs[number], self._outputs[number].grad[begin:end])
                    for number in wanted
                    if _has_gradient(outputs[number])
                ]
            if asked:
                autograd.backward(*map(list, zip(*asked, strict=True)))
                mx.nd.waitall()
            yield
        for number in wanted:
            self._outputs[number]._fresh_grad = False

    def _part(self, begin: int, end: int) -> tuple[Any, ...]:
        """The arguments for these samples."""

        def part(leaf: Any) -> Any:
            return leaf[begin:end] if isinstance(leaf, NDArray) and self._has_rows(leaf) else leaf

        with autograd.pause():
            return tuple(mapped(one, part) for one in self._args)

    def _has_rows(self, array: Any) -> bool:
        return _rows(array) == self._samples

    def _check_same(self, outputs: Sequence[Any], begin: int, end: int) -> None:
        """Raises TrainingError if the net does not compute the same a second time."""
        for kept, now in zip(self._outputs, outputs, strict=True):
            if not _is_floating(kept) or not kept.size:
                continue
            apart, largest = (kept[begin:end] - now).abs().max().asscalar(), kept.abs().max().asscalar()
            if apart > SAME * largest:
                causes = "random numbers that are not MXNet's, or a state that each forward pass changes"
                raise not_repeatable(self._net, causes, _BOUND)


def leaves_of(value: Any) -> list[Any]:
    """What is in tuples, lists and dicts, in order."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts of what `change` makes of what is in them."""
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(one, change) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def _rows(array: Any) -> int:
    return array.shape[0] if array.ndim else 0


def _is_floating(value: Any) -> bool:
    return isinstance(value, NDArray) and np.issubdtype(np.dtype(value.dtype), np.floating)


def _has_gradient(array: Any) -> bool:
    """Whether a gradient flows into it, or through it into something else."""
    try:
        inputs = autograd.get_symbol(array).list_arguments() if _is_floating(array) else []
    except mx.MXNetError:
        return False  # it is in no graph
    return any(not name.startswith("null") for name in inputs)  # so MXNet calls what needs no gradient
