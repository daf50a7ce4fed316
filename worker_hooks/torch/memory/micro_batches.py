"""A batch that does not fit into memory at once: the model computes it in micro-batches, exactly.

The script calls `model(inputs)` once, with the whole batch, and gets the outputs of the whole batch. In between, the
model's forward runs for one micro-batch after the other, and keeps nothing but outputs; the last one keeps its graph
too. The backward pass repeats the others, now with their graphs, and adds all gradients up. So loss, metrics, clipping,
GradScaler, schedulers and counters of the script see one batch and one step, as ever. The price is one more forward
pass of all micro-batches but one.

With `memory: auto` a number of samples that is not proven to fit is tried first: forward and backward pass of the first
samples, whose results are thrown away. What fails here, in a forward pass or in the repetition of one, is repeated with
smaller micro-batches. Nothing is lost: no gradient leaves before all of the batch are there.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from worker_hooks.loading.script_errors import first_line, is_out_of_memory
from worker_hooks.memory.divided_call import SAME, OutputParts, indivisible, not_repeatable, weights_changed
from worker_hooks.memory.memory_ceiling import WorkerMemory, pieces
from worker_hooks.memory.out_of_memory import give_back_freed_memory, memory_limited_to_what_is_left
from worker_hooks.torch.memory.repeatable import ForwardState
from worker_hooks.torch.parameters import TorchParameters

_SAME_IN_HALVES = 0.05


class TorchMicroBatchedForward:
    """Takes the place of `model.forward`."""

    _busy = False  # a model inside of another one is part of its micro-batches

    def __init__(self, memory: WorkerMemory, parameters: TorchParameters, model: torch.nn.Module) -> None:
        self._memory, self._parameters, self._model = memory, parameters, model
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
        memory, samples = self._memory, self._memory.samples_in_flight()
        ceiling = memory.ceiling
        whole = not samples or TorchMicroBatchedForward._busy or not torch.is_grad_enabled()
        if whole or (not ceiling.searches and ceiling.is_proven(samples)):
            return self._plain(*args, **kwargs)
        batch = TorchDividedBatch(memory, self._parameters, self._model, self._plain, args, kwargs, samples)
        if not batch.is_divisible:
            return self._plain(*args, **kwargs)
        TorchMicroBatchedForward._busy = True
        try:
            return self._divided(batch, samples)
        finally:
            memory.tell_failures()
            TorchMicroBatchedForward._busy = False

    def _divided(self, batch: TorchDividedBatch, samples: int) -> Any:
        memory, ceiling = self._memory, self._memory.ceiling
        smallest = memory.smallest_micro_batch()
        before = ForwardState(self._model)
        while True:
            at_once = ceiling.at_once(samples, smallest)
            try:
                if not ceiling.is_proven(at_once):
                    with before.restored():
                        batch.try_out(at_once)
                    ceiling.fitted(at_once)
                elif at_once >= samples:
                    return batch.whole()
                else:
                    return batch.forward(pieces(samples, at_once, smallest))
                continue
            except Exception as error:
                if not ceiling.searches or not is_out_of_memory(error):
                    raise
                told = first_line(error)
            before.restore()
            free_memory()
            memory.did_not_fit(at_once, told)


class TorchDividedBatch:
    """One call of a model with a batch."""

    keeps_graphs: ClassVar[bool] = False  # of all micro-batches: nothing is repeated, and nothing saved

    def __init__(
        self,
        memory: WorkerMemory,
        parameters: TorchParameters,
        model: torch.nn.Module,
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        samples: int,
    ) -> None:
        self._memory, self.model, self._plain, self._samples = memory, model, plain, samples
        self._parts = OutputParts(model, torch.Tensor, torch.cat)
        self._leaves, self._form = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        self._rows = [_is_tensor(leaf) and leaf.dim() > 0 and len(leaf) == samples for leaf in self._leaves]
        self.is_divisible = any(self._rows)
        if not self.is_divisible and not memory.ceiling.searches:
            longest = max((len(tensor) for tensor in tensors if tensor.dim()), default=0)
            if not memory.ceiling.is_proven(longest):
                raise indivisible(model, samples, "tensors")
        stepped = parameters.stepped()
        self._asking = [number for number, leaf in enumerate(self._leaves) if _is_tensor(leaf) and leaf.requires_grad]
        self.inputs: list[torch.Tensor] = [self._leaves[number] for number in self._asking] + stepped
        self._parameters = stepped
        self._autocast = _autocast_of({"cpu", *(tensor.device.type for tensor in (*tensors, *stepped))})
        self._pieces: list[tuple[int, int, ForwardState]] = []
        self._versions: list[int] = []  # of the parameters in the first forward pass
        self._graphs: list[tuple[list[Any], list[Any]]] = []  # arguments and outputs of the last micro-batches
        self._kept: list[tuple[torch.Tensor, int]] = []  # outputs of the first forward pass, and their versions

    def whole(self) -> Any:
        """The outputs in one go, as without micro-batches."""
        args, kwargs = pytree.tree_unflatten(self._leaves, self._form)
        return self._plain(*args, **kwargs)

    def try_out(self, samples: int) -> None:
        """Forward and backward pass of so many samples, for nothing. Raises whatever says that memory runs out."""
        with _guarded(self._memory), self._as_in_script(), torch.enable_grad():
            leaves = self._leaves_of(0, samples)
            outputs = [one for one in self._outputs(leaves)[0] if _is_tensor(one) and one.requires_grad]
            targets = self._targets(leaves)
            if outputs and targets:
                torch.autograd.grad(outputs, targets, [torch.zeros_like(one) for one in outputs], allow_unused=True)

    def forward(self, parts: Sequence[tuple[int, int]]) -> Any:
        """The outputs of the whole batch, computed in these parts; their backward pass repeats them one by one."""
        found: list[list[Any]] = []
        self._pieces, self._versions = [], self._parameter_versions()
        for begin, end in parts:
            self._pieces.append((begin, end, ForwardState(self.model, buffers=False)))
            has_graph = self.keeps_graphs or end == self._samples
            leaves, outputs, form = self._first_pass(begin, end, has_graph)
            self._parts.check(outputs, end - begin)
            found.append([one.detach() if _is_tensor(one) else one for one in outputs])
            if has_graph:
                self._graphs.append((leaves, outputs))
        joined = [self._parts.joined(parts_of_one) for parts_of_one in zip(*found, strict=True)]
        tensors = [number for number, one in enumerate(joined) if _is_tensor(one)]
        given = [joined[number] for number in tensors]
        self._kept = [(one.detach(), one._version) for one in given]
        del found
        with torch.enable_grad():
            for number, one in zip(tensors, _MicroBatches.apply(self, given, *self.inputs), strict=True):  # type: ignore[no-untyped-call]
                joined[number] = one
        return pytree.tree_unflatten(joined, form)

    def _first_pass(self, begin: int, end: int, has_graph: bool) -> tuple[list[Any], list[Any], Any]:
        """Arguments and outputs of a micro-batch, and the form of the outputs."""
        with _guarded(self._memory), self._as_in_script(), torch.set_grad_enabled(has_graph):
            leaves = self._leaves_of(begin, end)
            return leaves, *self._outputs(leaves)

    def gradients(self, wanted: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Of `inputs`, for the gradients of the outputs."""
        if self._versions != self._parameter_versions():
            raise weights_changed(self.model, "optimizer.step()")
        sums: list[torch.Tensor | None] = [None] * len(self.inputs)
        with ForwardState(self.model).restored():
            for begin, end, state in reversed(self._pieces):  # the last one has a graph, or all have; it is freed here
                self._add(begin, end, state, wanted, sums)
        self._memory.tell_failures()
        return sums

    def _add(
        self,
        begin: int,
        end: int,
        state: ForwardState | None,
        wanted: Sequence[torch.Tensor | None],
        sums: list[torch.Tensor | None],
    ) -> None:
        """Add the gradients of one micro-batch, or those of its two halves if they do not fit at once."""
        ceiling = self._memory.ceiling
        divisible = ceiling.searches and end - begin >= 2 * self._memory.smallest_micro_batch()
        if not divisible or ceiling.fails is None or end - begin < ceiling.fails:
            try:
                found = self._gradients_of(begin, end, state, wanted)
            except Exception as error:
                if not divisible or not is_out_of_memory(error):
                    raise
                told = first_line(error)
            else:
                if ceiling.searches:
                    ceiling.fitted(end - begin)
                for number, gradient in enumerate(found):
                    self._add_one(number, begin, end, gradient, sums)
                return
            free_memory()
            self._memory.did_not_fit(end - begin, told)
        middle = (begin + end) // 2
        self._add(begin, middle, state, wanted, sums)
        self._add(middle, end, None, wanted, sums)

    def _add_one(
        self, number: int, begin: int, end: int, gradient: torch.Tensor | None, sums: list[torch.Tensor | None]
    ) -> None:
        if gradient is None:
            return
        total = sums[number]
        if number < len(self._asking) and self._rows[self._asking[number]]:
            if total is None:
                total = sums[number] = torch.zeros_like(self.inputs[number])
            total[begin:end] = gradient
        else:
            sums[number] = gradient if total is None else total + gradient  # not in place: two may be one tensor

    def _gradients_of(
        self, begin: int, end: int, state: ForwardState | None, wanted: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        leaves, outputs = self._again(begin, end, state)
        asked = [
            (one, self._part_of(gradient, begin, end))
            for one, gradient in zip(filter(_is_tensor, outputs), wanted, strict=True)
            if gradient is not None and one.requires_grad
        ]
        if not asked:
            return [None] * len(self.inputs)
        ends, gradients = zip(*asked, strict=True)
        with _guarded(self._memory):
            return torch.autograd.grad(ends, self._targets(leaves), gradients, allow_unused=True)

    def _part_of(self, gradient: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """What the gradient of a joined output is for that of one micro-batch."""
        return gradient[begin:end]

    def _again(self, begin: int, end: int, state: ForwardState | None) -> tuple[list[Any], list[Any]]:
        """Arguments and outputs of a micro-batch, with their graph."""
        if self._graphs:
            return self._graphs.pop()
        if state is not None:
            state.restore()
        with _guarded(self._memory), self._as_in_script(), torch.enable_grad():
            leaves = self._leaves_of(begin, end)
            outputs, _ = self._outputs(leaves)
        self._check_same([one for one in outputs if _is_tensor(one)], begin, end)
        return leaves, outputs

    def _parameter_versions(self) -> list[int]:
        """They rise with each change."""
        return [parameter._version for parameter in self.model.parameters()]

    def _leaves_of(self, begin: int, end: int) -> list[Any]:
        """The arguments for these samples. Tensors that need a gradient are leaves of a graph of their own."""
        leaves = list(self._leaves)
        for number, leaf in enumerate(leaves):
            if not _is_tensor(leaf):
                continue
            part = leaf.detach()[begin:end] if self._rows[number] else leaf.detach()
            leaves[number] = part.requires_grad_(leaf.requires_grad)
        return leaves

    def _targets(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        return [*(leaves[number] for number in self._asking), *self._parameters]

    def _outputs(self, leaves: list[Any]) -> tuple[list[Any], Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self._form)
        return pytree.tree_flatten(self._plain(*args, **kwargs))

    @contextlib.contextmanager
    def _as_in_script(self) -> Iterator[None]:
        """Mixed precision as where the script called the model. Casts are not kept: some are without a graph."""
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    def _check_same(self, outputs: Sequence[torch.Tensor], begin: int, end: int) -> None:
        """Raises TrainingError if the model does not compute the same a second time."""
        halves = any(enabled for _, enabled, _ in self._autocast)
        for one, (kept, version) in zip(outputs, self._kept, strict=True):
            if kept._version != version or not kept.is_floating_point():
                continue  # the script has changed it in place
            before, now = kept[begin:end], one.detach()
            low = halves or torch.finfo(kept.dtype).bits < 32
            largest = float(before.abs().max()) if before.numel() else 0.0
            if before.numel() and float((now - before).abs().max()) > (_SAME_IN_HALVES if low else SAME) * largest:
                raise not_repeatable(
                    self.model,
                    "random numbers that are not torch's, a state that each forward pass changes, or batch norm or "
                    "dropout in a micro-batch that memory ran out in",
                    f"set at_once to less than {end - begin} for this worker, so that nothing is repeated otherwise",
                )


class _MicroBatches(torch.autograd.Function):
    """From the inputs and parameters to the outputs of all micro-batches."""

    @staticmethod
    def forward(ctx: Any, batch: TorchDividedBatch, outputs: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
        ctx.batch = batch
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one in outputs if not (one.is_floating_point() or one.is_complex())))
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return None, None, *ctx.batch.gradients(gradients)


def free_memory() -> None:
    """Give back what an attempt that failed has left."""
    gc.collect()
    give_back_freed_memory()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _guarded(memory: WorkerMemory) -> contextlib.AbstractContextManager[None]:
    return memory_limited_to_what_is_left() if memory.ceiling.searches else contextlib.nullcontext()


def _autocast_of(kinds: set[str]) -> list[tuple[str, bool, torch.dtype]]:
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(kinds)]
