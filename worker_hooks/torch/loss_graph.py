"""What the graph of a loss tells: whether it is a mean over the samples of the batch. It is read before backward.

From the loss down, a graph is a tree of sums, signs and constant factors, up to the first nodes that reduce values to
one number: a loss function, whose node keeps `reduction`, the weights of classes and `ignore_index`, or a sum or a mean
of torch. Only a mean over samples combines over workers without more being said:

    mean, or a sum divided by the number of samples or values      right
    a sum, divided by nothing or by a constant                     `run.backward(loss, reduction="sum")`
    a sum divided by something else that differs between batches   `run.backward(loss, weight=...)`
    a mean over weights of classes, or without ignored targets     `run.backward(loss, weight=...)`

Terms of parameters alone, such as penalties on weights, are no sums over samples: no data enters their graph. What is
hidden in one node, as in a compiled function or the backward pass of the script's own Function, is not seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from worker_hooks.torch.gathered_rows import GatheredRows

if TYPE_CHECKING:
    from worker_hooks.iteration import IterationInFlight

_MOST_NODES = 10_000  # that one look visits (chosen by us)
_LINEAR = {"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Stack", "Cat"}
_SAME_VALUES = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Expand"}
_TURNED = {"T", "Transpose", "Permute"}
_FUNCTIONS = {"Pow", "Exp", "Log", "Log1P", "Abs", "Sqrt", "Clamp", "ClampMin", "Softplus", "Sigmoid", "Tanh", "Relu"}
_CHOICES = {"Where", "Maximum", "Minimum", "MaskedFill", "LogSigmoid", "Xlogy"}
_BY_ELEMENT = _LINEAR | _SAME_VALUES | _TURNED | _FUNCTIONS | _CHOICES
_CHOSEN = {"Index", "MaskedSelect", "Gather", "Max", "Min", "Amax", "Amin", "Topk", "Sort"}
_OF_ROWS = _BY_ELEMENT | _CHOSEN | {"LogSoftmax", "Softmax", "Logsumexp", "Sum", "Mean"}
_STRAIGHT = _SAME_VALUES | _TURNED | (_LINEAR - {"Mul", "Div"}) | {"Sum", "Mean", "Index", "Gather", "Where"}
_CURVED_SUMS = {"Var", "Std", "LinalgVectorNorm", "Logsumexp", "Softmax", "LogSoftmax"}
_BY_NUMBER = {"Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather"}  # which rows, is data


_OF_ALL = (
    "is no mean over samples: a value of the whole batch is in it, such as a root of a mean, a ratio of sums, a "
    "variance or a correlation. What is trained is the mean over workers of such losses of each worker's own samples, "
    "which is not that of all; for this one, compute it over run.gather(outputs), the rows of all workers"
)


class Finding(NamedTuple):
    """Why a loss is no mean over samples."""

    text: str
    is_certain: bool  # otherwise it may be right


class _Term(NamedTuple):
    """A node that reduces values to a number of the loss, and what this number is divided by."""

    node: Any
    divisors: tuple[float, ...]

    @property
    def is_sum(self) -> bool:
        return _kind(self.node) == "Sum" or _reduction(self.node) == "sum"

    @property
    def is_mean(self) -> bool:
        return _kind(self.node) == "Mean" or _reduction(self.node) == "mean"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the values that are reduced."""
        target = getattr(self.node, "_saved_target", None)
        return tuple(self.node._saved_self_sym_sizes if target is None else target.shape)


class LossCheck:
    """Looks at the losses of the first iteration; if one is a sum, also at those of the first with another size."""

    def __init__(self) -> None:
        self._looks, self._most_looks = 0, 1
        self._iteration = -1  # looked at last
        self._samples = 0  # in it

    def refusal(
        self,
        loss: torch.Tensor,
        now: IterationInFlight,
        scale: float,
        is_whole: bool,
        tell: Callable[[str], None] | None,
    ) -> str:
        """Why a loss is not what the script says that it is; empty: nothing is known against it.

        Args:
            scale: of a GradScaler, that the loss is multiplied by.
            is_whole: it is the loss of the whole batch, not of a part of it.
            tell: gets what may be wrong.
        """
        samples = now.batch.samples
        if not self.is_due(now.batch.iteration, samples):
            return ""
        found = (
            self.of_sum(loss)
            if now.reduction == "sum"
            else self.of_mean(loss, samples, scale, is_whole, now.global_samples)
        )
        if tell and (doubt := next((one.text for one in found if not one.is_certain), "")):
            tell(f"it {doubt}")
        return next((one.text for one in found if one.is_certain), "")

    def is_due(self, iteration: int, samples: int) -> bool:
        """Whether to look at a loss of this iteration, in which this worker has so many samples."""
        if iteration != self._iteration and samples != self._samples and self._looks < self._most_looks:
            self._looks += 1
            self._iteration, self._samples = iteration, samples
        return iteration == self._iteration

    def of_mean(self, loss: torch.Tensor, samples: int, scale: float, is_whole: bool, of_all: int = 0) -> list[Finding]:
        """What is wrong with a loss that is given as a mean.

        `of_all`: samples of all workers, over which terms are means that `run.gather` has given the rows of all.
        """
        terms = list(_terms(loss, scale))
        if any(term.is_sum for term in terms):
            self._most_looks = 2  # what it is divided by may be right for one size alone
        found = [
            one
            for term in terms
            for is_gathered in [_is_gathered(term.node)]
            for one in _findings(term, of_all if is_gathered else samples, is_whole, is_gathered)
        ]
        if not found and samples > 1 and is_whole and _has_value_of_all(loss.grad_fn, samples):
            return [Finding(_OF_ALL, is_certain=False)]
        return found

    def of_sum(self, loss: torch.Tensor) -> list[Finding]:
        """What is wrong with a loss that is given as a sum."""
        if any(term.is_mean and _has_data(term.node) for term in _terms(loss, 1.0)):
            return [Finding('has a mean in it, and run.backward(loss, reduction="sum") takes sums', is_certain=True)]
        return []


def _terms(loss: torch.Tensor, scale: float) -> Iterator[_Term]:
    left: list[tuple[Any, tuple[float, ...]]] = [(loss.grad_fn, ())]
    for _ in range(_MOST_NODES):
        if not left:
            return
        node, divisors = left.pop()
        if node is None:
            continue
        kind, edges = _kind(node), _edges(node)
        joins = kind in ("Sum", "Mean") and _joins_numbers(node)
        if kind in _LINEAR or kind in _SAME_VALUES or joins:
            divisor = _divisor(node, kind, edges)
            more = () if divisor == 1 or math.isclose(divisor * scale, 1.0) else (divisor,)
            left += [(edge, divisors + more) for edge in (edges[:1] if kind == "Div" else edges)]
        elif kind == "Mean" or _reduction(node) or (kind == "Sum" and _is_of_all(node)):
            yield _Term(node, divisors)


def _findings(term: _Term, samples: int, is_whole: bool, is_gathered: bool) -> Iterator[Finding]:
    node = term.node
    if not _has_data(node):
        return
    if term.is_sum:
        if _kind(node) != "Sum" or _is_over_samples(node, term.sizes, samples):
            yield from _of_sum(term, samples)
    elif found := _of_targets(node):
        yield found
    elif is_whole and (_reduction(node) == "mean" or _is_of_chosen(node)) and not _goes_with(term.sizes, samples):
        yield Finding(
            f"is a mean over {term.sizes[0]} rows, and this worker's batch has {samples} samples; where the "
            "data decide how many rows a batch has, call run.backward(loss, weight=rows)",
            is_certain=False,
        )
    if is_gathered or samples <= 1 or not is_whole:
        return
    if any(_is_of_pairs(one, samples) for one in _below(node, _OF_ROWS)):
        yield Finding(
            "compares samples of the batch with each other: what is trained is the mean over workers of the "
            "losses over the pairs of each worker's own samples, which is not the loss over the pairs of all; for "
            "this one, compute it over run.gather(outputs), the rows of all workers",
            is_certain=False,
        )


def _of_sum(term: _Term, samples: int) -> Iterator[Finding]:
    """What a sum is divided by must be a number of samples, or of their values."""
    sizes, divisors = term.sizes, term.divisors or (1.0,)
    inner = [math.prod(some) for n in range(len(sizes)) for some in itertools.combinations(sizes[1:7], n)] or [1]
    right = [rows * values for rows in (samples, *sizes[:1]) for values in inner]
    if any(math.isclose(one, other, rel_tol=1e-6) for one in (*divisors, math.prod(divisors)) for other in right):
        return
    by = " and ".join(f"{divisor:g}" for divisor in divisors) if term.divisors else "nothing"
    yield Finding(
        f"is a sum divided by {by}, and this worker's batch has {samples} samples; where it is divided by nothing "
        'or by a constant, call run.backward(loss, reduction="sum"); where it is divided by a number of tokens or '
        "other units of the batch, call run.backward(loss, weight=units)",
        is_certain=not any(_is_multiple(divisor, samples) for divisor in divisors),
    )


def _of_targets(node: Any) -> Finding | None:
    """A mean of cross_entropy or nll_loss may be over something else than its targets."""
    weight, ignored = getattr(node, "_saved_weight", None), getattr(node, "_saved_ignore_index", None)
    if ignored is None:
        return None
    ignored = _signed(ignored)
    if weight is not None and bool((weight != weight.flatten()[0]).any()):
        return Finding(
            "is a mean over the weights of classes; call run.backward(loss, weight=class_weights[targets].sum())",
            is_certain=True,
        )
    if bool((node._saved_target == ignored).any()):
        return Finding(
            f"is a mean without the targets that are {ignored} (ignore_index); call "
            f"run.backward(loss, weight=(targets != {ignored}).sum())",
            is_certain=True,
        )
    return None


def _is_over_samples(node: Any, sizes: tuple[int, ...], samples: int) -> bool:
    """Whether a sum of torch is over the samples: their number is that of its rows, or it is over losses of rows."""
    below = list(_below(node, _BY_ELEMENT | {"Index", "MaskedSelect", "Mean"}))
    if any(_kind(one) == "Mean" and samples in _reduced(one) for one in below):
        return False  # of a mean over them
    return sizes[0] == samples or any(_reduction(one) == "none" for one in below)


def _is_of_chosen(node: Any) -> bool:
    """Whether a mean is over rows that a mask or numbers have chosen."""
    return any(_kind(one) in ("Index", "MaskedSelect") for one in _below(node, _BY_ELEMENT))


def _is_of_pairs(node: Any, samples: int) -> bool:
    """Whether a node joins outputs of a model for all samples with outputs for all samples: by a product of matrices,
    by distances, or element by element where `z[:, None]` meets `z[None]`."""
    kind, edges = _kind(node), _edges(node)
    if kind == "Pdist":
        return _is_multiple(len(node._saved_self), samples)
    if len(edges) != 2 or None in edges or any(map(_is_parameter, edges)):
        return False
    if kind == "Mm":
        sizes = node._saved_self_sym_sizes[0], node._saved_mat2_sym_sizes[1]
    elif kind == "Bmm" and len(node._saved_self) == 1:
        sizes = node._saved_self.shape[1], node._saved_mat2.shape[2]
    elif kind in ("Cdist", "EuclideanDist"):
        sizes = node._saved_x1.shape[-2], node._saved_x2.shape[-2]
    else:
        return kind in _BY_ELEMENT and sorted(map(_new_dimension, edges)) == [0, 1] and _has_data(node)
    return all(_is_multiple(size, samples) for size in sizes)


def _new_dimension(node: Any) -> int:
    """Of size 1, which a node puts in; -1: none."""
    while _kind(node) in ("Expand", "Clone", "ToCopy"):
        node = _edges(node)[0]
    return node._saved_dim if _kind(node) == "Unsqueeze" else -1


def _has_value_of_all(root: Any, samples: int) -> bool:
    """Whether a loss has a sum or mean over the samples in it that anything but sums and factors is computed from."""
    left, seen = [(root, False)], set[Any]()
    while left and len(seen) < _MOST_NODES:
        node, is_curved = one = left.pop()
        if node is None or one in seen:
            continue
        seen.add(one)
        kind, edges = _kind(node), _edges(node)
        is_all = (is_curved or kind in _CURVED_SUMS) and _is_over_batch(node, samples)
        if is_all and _has_data(node) and not _is_gathered(node):
            return True
        if kind not in _OF_ROWS and not _reduction(node):
            continue
        if kind in ("Mul", "Div"):
            bends = sum(edge is not None and (_takes_data(edge) or _has_data(edge)) for edge in edges) > 1
        else:
            bends = kind not in _STRAIGHT
        left += [(edge, is_curved or bends) for edge in edges]
    return False


def _is_gathered(node: Any) -> bool:
    """Whether rows of all workers are in it, that `run.gather` has given."""
    return any(_kind(one) == GatheredRows.__name__ for one in _below(node, None))


def _is_over_batch(node: Any, samples: int) -> bool:
    """Whether a node makes one value of all samples, which are its rows."""
    kind = _kind(node)
    if kind == "Mm":
        of_parameters = None in _edges(node) or any(map(_is_parameter, _edges(node)))
        return not of_parameters and _is_multiple(node._saved_self_sym_sizes[1], samples)
    if _reduction(node) in ("mean", "sum"):
        return _is_multiple(len(node._saved_target), samples)
    if kind in ("Sum", "Mean"):
        sizes = () if _joins_numbers(node) else tuple(node._saved_self_sym_sizes)
    elif kind in _CURVED_SUMS:
        sizes = tuple((node._saved_result if kind.endswith("Softmax") else node._saved_self).shape)
    else:
        return False
    dims = getattr(node, "_saved_dim", None)
    dims = (dims,) if isinstance(dims, int) else dims or ()
    whole = not dims or any(_signed(dim) % len(sizes) == 0 for dim in dims)
    return bool(sizes) and whole and _is_multiple(sizes[0], samples)


def _is_parameter(node: Any) -> bool:
    while _kind(node) in _SAME_VALUES | _TURNED:
        node = _edges(node)[0]
    return _kind(node) == "AccumulateGrad"


def _has_data(node: Any) -> bool:
    """Whether a node depends on more than parameters: something without a gradient goes into it, but for constants."""
    return any(map(_takes_data, _below(node, None)))


def _takes_data(node: Any) -> bool:
    if _kind(node) in _BY_NUMBER or isinstance(node, BackwardCFunction):
        return True
    return None in _edges(node) and _kind(node) not in _BY_ELEMENT and not _reduction(node)


def _below(node: Any, through: Set[str] | None) -> Iterator[Any]:
    """The nodes that `node` is computed from, as far as those in between are of these kinds; without: all of them."""
    left, seen = [edge for edge in _edges(node) if edge is not None], set[Any]()
    while left and len(seen) < _MOST_NODES:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        if through is None or _kind(one) in through:
            left += [edge for edge in _edges(one) if edge is not None]


def _kind(node: Any) -> str:
    """Such as `Mul`, for MulBackward0."""
    return str(node.name()).rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")


def _edges(node: Any) -> list[Any]:
    return [edge for edge, _ in node.next_functions]


def _reduction(node: Any) -> str:
    """Of the node of a loss function; empty for other nodes."""
    number = getattr(node, "_saved_reduction", None)
    return "" if number is None else ("none", "mean", "sum")[number]


def _reduced(node: Any) -> list[int]:
    """The dimensions that a sum or mean is over."""
    sizes, dims = node._saved_self_sym_sizes, getattr(node, "_saved_dim", None)
    return [sizes[_signed(dim)] for dim in dims or range(len(sizes))]


def _signed(number: int) -> int:
    """Nodes show numbers without their sign."""
    return number - (number >> 63 << 64) if number > 0 else number


def _is_of_all(node: Any) -> bool:
    """Whether a sum is over all dimensions."""
    return len(_reduced(node)) == len(node._saved_self_sym_sizes)


def _joins_numbers(node: Any) -> bool:
    """Whether a sum or mean is that of a few losses, which the script has stacked."""
    sizes, (before, *_) = tuple(node._saved_self_sym_sizes), _edges(node)
    if math.prod(sizes) == 1:
        return True
    return before is not None and _kind(before) in ("Stack", "Cat") and sizes == (len(_edges(before)),)


def _divisor(node: Any, kind: str, edges: list[Any]) -> float:
    """What a node divides by; 1 where that is no constant."""
    if kind == "Mean":
        return float(math.prod(node._saved_self_sym_sizes))
    if kind not in ("Mul", "Div") or (None not in edges and len(edges) > 1):
        return 1.0
    value = node._saved_self if edges[0] is None else node._saved_other
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else 1.0
    return float(value) if kind == "Div" else 1 / value if value else 1.0


def _is_multiple(number: float, samples: int) -> bool:
    return number >= samples and math.isclose(number / samples, round(number / samples), rel_tol=1e-6)


def _goes_with(sizes: tuple[int, ...], samples: int) -> bool:
    """Whether the number of rows follows from that of samples."""
    return samples in sizes or not sizes or _is_multiple(sizes[0], samples) or _is_multiple(samples, max(sizes[0], 1))
