"""The nodes of a graph of autograd: what they are, what they have kept, and what they are computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

MOST_NODES = 10_000  # that one look visits (chosen by us)
LINEAR = {"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Stack", "Cat"}
SAME_VALUES = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Expand"}
TURNED = {"T", "Transpose", "Permute"}
_FUNCTIONS = {"Pow", "Exp", "Log", "Log1P", "Abs", "Sqrt", "Clamp", "ClampMin", "Softplus", "Sigmoid", "Tanh", "Relu"}
_CHOICES = {"Where", "Maximum", "Minimum", "MaskedFill", "LogSigmoid", "Xlogy"}
BY_ELEMENT = LINEAR | SAME_VALUES | TURNED | _FUNCTIONS | _CHOICES
_CHOSEN = {"Index", "MaskedSelect", "Gather", "Max", "Min", "Amax", "Amin", "Topk", "Sort"}
OF_ROWS = BY_ELEMENT | _CHOSEN | {"LogSoftmax", "Softmax", "Logsumexp", "Sum", "Mean"}
_BY_NUMBER = {"Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather"}  # which rows, is data


def kind_of(node: Any) -> str:
    """Such as `Mul`, for MulBackward0."""
    return str(node.name()).rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")


def edges_of(node: Any) -> list[Any]:
    return [edge for edge, _ in node.next_functions]


def input_shapes(node: Any) -> list[tuple[int, ...]]:
    """Of what a node is computed from; empty where that has no gradient. Saved tensors stay as they are: they may be
    computed anew when somebody asks for them."""
    found = []
    for edge, number in node.next_functions:
        known = getattr(edge, "_input_metadata", ())  # of its backward pass: the outputs of the forward pass
        found.append(tuple(known[number].shape) if known else ())
    return found


def nodes_below(node: Any, through: Set[str] | None) -> Iterator[Any]:
    """The nodes that `node` is computed from, as far as those in between are of these kinds; without: all of them."""
    left, seen = [edge for edge in edges_of(node) if edge is not None], set[Any]()
    while left and len(seen) < MOST_NODES:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        if through is None or kind_of(one) in through:
            left += [edge for edge in edges_of(one) if edge is not None]


def reaches(loss: torch.Tensor, wanted: Callable[[torch.Tensor], bool]) -> bool:
    """Whether backward adds the gradient of `loss` to a tensor that is wanted, or to no parameter that shows.

    A graph that is computed anew in the backward pass (checkpointing) does not show its parameters.
    """
    if loss.grad_fn is None:
        return loss.requires_grad and wanted(loss)
    shows_none = True
    for node in nodes_below(loss.grad_fn, None):
        if kind_of(node) == "AccumulateGrad":
            if wanted(node.variable):
                return True
            shows_none &= not isinstance(node.variable, torch.nn.Parameter)
    return shows_none


def is_parameter(node: Any) -> bool:
    while kind_of(node) in SAME_VALUES | TURNED:
        node = edges_of(node)[0]
    return kind_of(node) == "AccumulateGrad"


def has_data(node: Any) -> bool:
    """Whether a node depends on more than parameters: something without a gradient goes into it, but for constants."""
    return any(map(takes_data, nodes_below(node, None)))


def takes_data(node: Any) -> bool:
    if kind_of(node) in _BY_NUMBER or isinstance(node, BackwardCFunction):
        return True
    return None in edges_of(node) and kind_of(node) not in BY_ELEMENT and not reduction_of(node)


def reduction_of(node: Any) -> str:
    """Of the node of a loss function; empty for other nodes."""
    number = getattr(node, "_saved_reduction", None)
    return "" if number is None else ("none", "mean", "sum")[number]


def signed(number: int) -> int:
    """Nodes show numbers without their sign."""
    return number - (number >> 63 << 64) if number > 0 else number


def joins_numbers(node: Any) -> bool:
    """Whether a sum or mean is that of a few losses, which the script has stacked."""
    sizes, (before, *_) = tuple(node._saved_self_sym_sizes), edges_of(node)
    if math.prod(sizes) == 1:
        return True
    return before is not None and kind_of(before) in ("Stack", "Cat") and sizes == (len(edges_of(before)),)


def is_multiple(number: float, samples: int) -> bool:
    return number >= samples and math.isclose(number / samples, round(number / samples), rel_tol=1e-6)
