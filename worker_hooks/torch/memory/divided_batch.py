"""One call of a model whose batch is computed in parts, forward and backward."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # torch.autograd.grad loads it: half a second, not in an iteration
from torch.utils import _pytree as pytree

from worker_hooks.loading.script_errors import first_line, is_out_of_memory
from worker_hooks.memory.divided_call import SAME, OutputParts, indivisible, not_repeatable, weights_changed
from worker_hooks.memory.memory_ceiling import WorkerMemory
from worker_hooks.memory.out_of_memory import give_back_freed_memory, memory_limited_to_what_is_left
from worker_hooks.torch.memory.repeatable import ForwardState
from worker_hooks.torch.parameters import TorchParameters

SAME_IN_HALVES = 0.05


class TorchDividedBatch:
    """One call of a model with a batch.

    Attributes:
        inputs: what the backward pass finds the gradients of: arguments that ask for one, then parameters.
        ends_at: whether the next backward pass is to end where the first rows, so many, are left; none: it does not.
    """

    ends_at: Callable[[int], bool] | None = None
    _graphs_are_shared = False  # with one of gradients

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

    @property
    def is_divisible(self) -> bool:
        """Whether an argument has the rows of the batch."""
        return any(self._rows)

    @property
    def rows(self) -> list[torch.Tensor]:
        """The arguments that are divided."""
        return [leaf for leaf, has_rows in zip(self._leaves, self._rows, strict=True) if has_rows]

    @property
    def asks_for_gradients(self) -> bool:
        """Whether an argument has a gradient."""
        return bool(self._asking)

    def outputs_of(self, begin: int, end: int) -> list[Any]:
        """What the model returns for these samples."""
        with self._as_in_script():
            outputs, _ = self._outputs(self._leaves_of(begin, end))
        self._parts.check(outputs, end - begin)
        return outputs

    def forward(self, parts: Sequence[tuple[int, int]], keeps_graphs: bool = False) -> Any:
        """The outputs of the whole batch, computed in these parts; their backward pass goes through them one by one.

        `keeps_graphs`: of all of them, so that nothing is repeated. Otherwise all but the last part are.
        """
        found: list[list[Any]] = []
        self._pieces, self._versions = [], self._parameter_versions()
        for begin, end in parts:
            self._pieces.append((begin, end, ForwardState(self.model, buffers=False)))
            has_graph = keeps_graphs or end == self._samples
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
        repeats = not self.has_all_graphs
        if repeats and self._versions != self._parameter_versions():
            raise weights_changed(self.model, "optimizer.step()")
        sums = self._no_sums()
        may_repeat = repeats or self._memory.ceiling.searches
        with ForwardState(self.model).restored() if may_repeat else contextlib.nullcontext():
            for begin, end, state in reversed(self._pieces):  # the last one has a graph, or all have; it is freed here
                self._add(begin, end, state, wanted, sums)
                if begin and self.ends_at is not None and self.ends_at(begin):
                    break
        self.drop_graphs()
        self.ends_at = None
        self._memory.tell_failures()
        return sums.totals

    def _no_sums(self) -> _Sums:
        return _Sums(self.inputs, [place for place, number in enumerate(self._asking) if self._rows[number]])

    def drop_graphs(self) -> None:
        """Free those of parts: they are not needed, or the memory is."""
        self._graphs.clear()

    @property
    def has_all_graphs(self) -> bool:
        """Whether no part is to be repeated."""
        return len(self._graphs) == len(self._pieces)

    @property
    def gives_graphs(self) -> bool:
        """Whether there are gradients in a graph of their own."""
        return self.has_all_graphs and not self._asking

    def gradients_with_graph(self, wanted: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The same, in a graph of their own. All graphs are kept."""
        sums, self._graphs_are_shared = self._no_sums(), True
        for (begin, end, _), (leaves, outputs) in zip(self._pieces, self._graphs, strict=True):
            sums.add(begin, end, self._through(begin, end, leaves, outputs, wanted))
        return sums.totals

    def _add(
        self,
        begin: int,
        end: int,
        state: ForwardState | None,
        wanted: Sequence[torch.Tensor | None],
        sums: _Sums,
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
                sums.add(begin, end, found)
                return
            self.drop_graphs()
            free_memory()
            self._memory.did_not_fit(end - begin, told)
        middle = (begin + end) // 2
        self._add(begin, middle, state, wanted, sums)
        self._add(middle, end, None, wanted, sums)

    def _gradients_of(
        self, begin: int, end: int, state: ForwardState | None, wanted: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        return self._through(begin, end, *self._again(begin, end, state), wanted)

    def _through(
        self,
        begin: int,
        end: int,
        leaves: Sequence[Any],
        outputs: Sequence[Any],
        wanted: Sequence[torch.Tensor | None],
    ) -> Sequence[torch.Tensor | None]:
        """Gradients of the arguments and parameters of a micro-batch."""
        asked = [
            (one, self._part_of(gradient, begin, end))
            for one, gradient in zip(filter(_is_tensor, outputs), wanted, strict=True)
            if gradient is not None and one.requires_grad
        ]
        if not asked:
            return [None] * len(self.inputs)
        ends, gradients = zip(*asked, strict=True)
        with _guarded(self._memory):
            return torch.autograd.grad(
                ends,
                self._targets(leaves),
                gradients,
                retain_graph=self._graphs_are_shared,
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )

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
            if before.numel() and float((now - before).abs().max()) > (SAME_IN_HALVES if low else SAME) * largest:
                raise not_repeatable(
                    self.model,
                    "random numbers that are not torch's, a state that each forward pass changes, or batch norm or "
                    "dropout in a micro-batch that memory ran out in",
                    f"set at_once to less than {end - begin} for this worker, so that nothing is repeated otherwise",
                )


class _Sums:
    """Of the gradients of parts.

    Attributes:
        totals: of each input; none: it has no gradient so far.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], with_rows: Collection[int]) -> None:
        """`with_rows`: numbers of the inputs that are divided themselves."""
        self._inputs, self._with_rows = inputs, with_rows
        self.totals: list[torch.Tensor | None] = [None] * len(inputs)
        self._own: set[int] = set()  # totals that are no gradient of a part: two gradients may be one tensor

    def add(self, begin: int, end: int, found: Sequence[torch.Tensor | None]) -> None:
        """Those of one part."""
        for number, gradient in enumerate(found):
            if gradient is None:
                continue
            total = self.totals[number]
            if number in self._with_rows:
                if total is None:
                    total = self.totals[number] = torch.zeros_like(self._inputs[number])
                total[begin:end] = gradient
            elif total is None:
                self.totals[number] = gradient
            elif number in self._own:
                total.add_(gradient)
            else:
                self.totals[number] = total + gradient
                self._own.add(number)


class _MicroBatches(torch.autograd.Function):
    """From the inputs and parameters to the outputs of all micro-batches."""

    @staticmethod
    def forward(ctx: Any, batch: TorchDividedBatch, outputs: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
        ctx.batch = batch
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one in outputs if not (one.is_floating_point() or one.is_complex())))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled() and ctx.batch.gives_graphs:  # the script wants a graph of the gradients
            return None, None, *ctx.batch.gradients_with_graph(gradients)
        return _once_differentiable(ctx, *gradients)


@torch.autograd.function.once_differentiable
def _once_differentiable(ctx: Any, *gradients: torch.Tensor | None) -> Any:
    return None, None, *ctx.batch.gradients(gradients)


def is_call(node: Any) -> bool:
    """Whether a node of a graph is a call of a model in parts, which is its `batch`."""
    return isinstance(getattr(node, "batch", None), TorchDividedBatch)


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
