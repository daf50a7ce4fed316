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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from worker_hooks.torch.loss.batch_values import has_gathered_rows, has_value_of_all, is_of_pairs
from worker_hooks.torch.loss.graph_nodes import (
    BY_ELEMENT,
    LINEAR,
    MOST_NODES,
    OF_ROWS,
    SAME_VALUES,
    edges_of,
    has_data,
    is_multiple,
    joins_numbers,
    kind_of,
    nodes_below,
    reduction_of,
    signed,
)

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight

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
        return kind_of(self.node) == "Sum" or reduction_of(self.node) == "sum"

    @property
    def is_mean(self) -> bool:
        return kind_of(self.node) == "Mean" or reduction_of(self.node) == "mean"

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
        """Why a loss that is due is not what the script says that it is; empty: nothing is known against it.

        Args:
            scale: of a GradScaler, that the loss is multiplied by.
            is_whole: it is the loss of the whole batch, not of a part of it.
            tell: gets what may be wrong.
        """
        samples = now.batch.samples
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
            for is_gathered in [has_gathered_rows(term.node)]
            for one in _findings(term, of_all if is_gathered else samples, is_whole, is_gathered)
        ]
        if not found and samples > 1 and is_whole and has_value_of_all(loss.grad_fn, samples):
            return [Finding(_OF_ALL, is_certain=False)]
        return found

    def of_sum(self, loss: torch.Tensor) -> list[Finding]:
        """What is wrong with a loss that is given as a sum."""
        if any(term.is_mean and has_data(term.node) for term in _terms(loss, 1.0)):
            return [Finding('has a mean in it, and run.backward(loss, reduction="sum") takes sums', is_certain=True)]
        return []


def _terms(loss: torch.Tensor, scale: float) -> Iterator[_Term]:
    left: list[tuple[Any, tuple[float, ...]]] = [(loss.grad_fn, ())]
    for _ in range(MOST_NODES):
        if not left:
            return
        node, divisors = left.pop()
        if node is None:
            continue
        kind, edges = kind_of(node), edges_of(node)
        joins = kind in ("Sum", "Mean") and joins_numbers(node)
        if kind in LINEAR or kind in SAME_VALUES or joins:
            divisor = _divisor(node, kind, edges)
            more = () if divisor == 1 or math.isclose(divisor * scale, 1.0) else (divisor,)
            left += [(edge, divisors + more) for edge in (edges[:1] if kind == "Div" else edges)]
        elif kind == "Mean" or reduction_of(node) or (kind == "Sum" and _is_of_all(node)):
            yield _Term(node, divisors)


def _findings(term: _Term, samples: int, is_whole: bool, is_gathered: bool) -> Iterator[Finding]:
    node = term.node
    if not has_data(node):
        return
    if term.is_sum:
        if kind_of(node) != "Sum" or _is_over_samples(node, term.sizes, samples):
            yield from _of_sum(term, samples)
    elif found := _of_targets(node):
        yield found
    elif is_whole and (reduction_of(node) == "mean" or _is_of_chosen(node)) and not _goes_with(term.sizes, samples):
        yield Finding(
            f"is a mean over {term.sizes[0]} rows, and this worker's batch has {samples} samples; where the "
            "data decide how many rows a batch has, call run.backward(loss, weight=rows)",
            is_certain=False,
        )
    if is_gathered or samples <= 1 or not is_whole:
        return
    if any(is_of_pairs(one, samples) for one in nodes_below(node, OF_ROWS)):
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
        is_certain=not any(is_multiple(divisor, samples) for divisor in divisors),
    )


def _of_targets(node: Any) -> Finding | None:
    """A mean of cross_entropy or nll_loss may be over something else than its targets."""
    weight, ignored = getattr(node, "_saved_weight", None), getattr(node, "_saved_ignore_index", None)
    if ignored is None:
        return None
    ignored = signed(ignored)
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
    below = list(nodes_below(node, BY_ELEMENT | {"Index", "MaskedSelect", "Mean"}))
    if any(kind_of(one) == "Mean" and samples in _reduced(one) for one in below):
        return False  # of a mean over them
    return sizes[0] == samples or any(reduction_of(one) == "none" for one in below)


def _is_of_chosen(node: Any) -> bool:
    """Whether a mean is over rows that a mask or numbers have chosen."""
    return any(kind_of(one) in ("Index", "MaskedSelect") for one in nodes_below(node, BY_ELEMENT))


def _reduced(node: Any) -> list[int]:
    """The dimensions that a sum or mean is over."""
    sizes, dims = node._saved_self_sym_sizes, getattr(node, "_saved_dim", None)
    return [sizes[signed(dim)] for dim in dims or range(len(sizes))]


def _is_of_all(node: Any) -> bool:
    """Whether a sum is over all dimensions."""
    return len(_reduced(node)) == len(node._saved_self_sym_sizes)


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


def _goes_with(sizes: tuple[int, ...], samples: int) -> bool:
    """Whether the number of rows follows from that of samples."""
    return samples in sizes or not sizes or is_multiple(sizes[0], samples) or is_multiple(samples, max(sizes[0], 1))
