"""Whether a loss is a sum of terms of single rows of a model's outputs, with the same factor for each.

Then what the backward pass of some rows gives is their part of the gradient, whatever becomes of the others. From the
outputs to the loss, every node of the graph is looked at. It must keep rows apart, in a dimension that is known, or add
all of them up; what is computed from a sum of all rows must be linear. A node that is not known is refused, as it may
compare rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from worker_hooks.torch.loss.graph_nodes import (
    BY_ELEMENT,
    LINEAR,
    MOST_NODES,
    SAME_VALUES,
    TURNED,
    edges_of,
    input_shapes,
    kind_of,
    reduction_of,
    signed,
)

_MORE_FUNCTIONS = {"Gelu", "Silu", "LeakyRelu", "Elu", "Rsqrt", "Reciprocal", "Sin", "Cos", "Expm1", "Log2", "Erf"}
_WITH_CLASSES = 2  # dimensions
_LINEAR = (LINEAR | SAME_VALUES | TURNED | {"Sum", "Mean"}) - {"Mul", "Div"}

Shape = tuple[int, ...]


class _Rows(NamedTuple):
    """Where rows are in a tensor: `each` entries of a row after the other, in one dimension, counted from the end."""

    dimension: int
    each: int

    def place(self, shape: Shape) -> int:
        return len(shape) + self.dimension


_ALL = _Rows(0, 0)  # every value is a sum over all rows


class _NotOfRows(Exception):
    """Why a loss is no sum of terms of single rows."""


def of_rows(loss: torch.Tensor, is_call: Callable[[Any], bool]) -> tuple[Any, str]:
    """The node of the one call of a model that a loss is computed from, and why it is no sum of terms of the rows of
    its outputs: empty where it is one. `is_call`: whether a node is such a call."""
    try:
        call = _call_below(loss.grad_fn, is_call)
        if _rows_of(loss.grad_fn, call) != _ALL:
            raise _NotOfRows("its loss is no sum over the rows of the batch")
    except _NotOfRows as error:
        return None, str(error)
    return call, ""


def _call_below(root: Any, is_call: Callable[[Any], bool]) -> Any:
    """The one call that `root` is computed from. Raises _NotOfRows if that is not all."""
    calls, left, seen = list[Any](), [root], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if is_call(node):
            calls.append(node)
        elif kind_of(node) == "AccumulateGrad":
            raise _NotOfRows("its loss is computed from parameters by another way than through the outputs of a model")
        elif len(seen) > MOST_NODES:
            raise _NotOfRows("the graph of its loss is too large to be looked at")
        else:
            left += edges_of(node)
    if len(calls) != 1:
        how = "several calls of its models" if calls else "no call of a model that it gave to attach()"
        raise _NotOfRows(f"its loss is computed from the outputs of {how}")
    return calls[0]


def _rows_of(root: Any, call: Any) -> _Rows:
    """Where the rows of `call` are in the value of `root`. Raises _NotOfRows."""
    found: dict[tuple[Any, int], _Rows] = {}
    left = [(root, 0)]
    while left:
        node, number = one = left[-1]
        shape = _shape_of(node, number)
        if node is call:
            found[one] = _Rows(-len(shape), 1)
        before = [edge for edge in node.next_functions if edge[0] is not None]
        if one in found:
            left.pop()
        elif missing := [edge for edge in before if edge not in found]:
            left += missing
        else:
            known = zip(node.next_functions, input_shapes(node), strict=True)
            inputs = [(found[edge], size) for edge, size in known if edge[0] is not None]
            found[one] = _after(node, kind_of(node), inputs, shape)
    return found[(root, 0)]


def _shape_of(node: Any, number: int) -> Shape:
    known = getattr(node, "_input_metadata", ())  # of its backward pass: the outputs of the forward pass
    return tuple(known[number].shape) if number < len(known) else ()


def _after(node: Any, kind: str, inputs: list[tuple[_Rows, Shape]], shape: Shape) -> _Rows:
    """Where rows are after a node. `shape`: of what it gives. Raises _NotOfRows."""
    rows, before = inputs[0]
    if all(other == _ALL for other, _ in inputs):
        by_constant = len(inputs) == 1 and (kind == "Mul" or (kind == "Div" and edges_of(node)[0] is not None))
        if kind in _LINEAR or by_constant:
            return _ALL
        raise _NotOfRows(f"its loss is no sum over rows: {kind} of a value of all rows is in it")
    if rows != _ALL and kind in _RULES and all(other == rows for other, _ in inputs):
        found = _RULES[kind](node, rows, before, shape)
        if found is not None:
            return found
    raise _NotOfRows(f"its loss may compare rows of the batch with each other ({kind})")


# What follows says where rows are after a node of one kind; None: they may be mixed.


def _kept(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Where no values of several rows meet, unless the dimension of rows changes."""
    has_all = len(shape) >= -rows.dimension and shape[rows.dimension] == before[rows.dimension]
    return rows if has_all else None


def _kept_unless_in(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Of something in one dimension."""
    return None if rows.place(before) in _dimensions(node, before) else _kept(node, rows, before, shape)


def _over_dimensions(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Where dimensions go, if they are not kept with one value."""
    place, over = rows.place(before), _dimensions(node, before)
    if place in over:
        return None
    gone = sum(dimension > place for dimension in over) if len(shape) < len(before) else 0
    return rows._replace(dimension=rows.dimension + gone)


def _added(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Of a sum or mean."""
    return _over_dimensions(node, rows, before, shape) or _ALL


def _dimensions(node: Any, before: Shape) -> set[int]:
    """What a node is over, or in; all of them where it does not say."""
    dims = getattr(node, "_saved_dim", None)
    chosen = (dims,) if isinstance(dims, int) else dims or range(len(before))
    return {signed(dim) % len(before) for dim in chosen}


def _loss(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Of a loss function by element."""
    return rows if reduction_of(node) == "none" else _ALL


def _loss_of_classes(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """Of one whose rows are the first dimension, and classes the second: without rows it is of one dimension."""
    if rows.place(before) != 0 or len(before) < _WITH_CLASSES:
        return None
    return _Rows(-len(shape), rows.each) if reduction_of(node) == "none" else _ALL


def _reshaped(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """The same values in the same order, in another shape."""
    place = rows.place(before)
    values = rows.each * math.prod(before[place + 1 :])  # of a row, one after the other if rows come first
    leading = next((number for number, size in enumerate(shape) if size > 1), 0)
    inner = math.prod(shape[leading + 1 :])
    if math.prod(before[:place]) != 1 or not inner or values % inner:
        return None
    return _Rows(leading - len(shape), values // inner)


def _turned(node: Any, rows: _Rows, before: Shape, shape: Shape) -> _Rows | None:
    """The same dimensions in another order."""
    order = list(range(len(before)))
    if kind_of(node) == "Permute":
        order = [signed(dim) % len(before) for dim in node._saved_dims]
    elif len(before) > 1:
        dims = (0, 1) if kind_of(node) == "T" else (node._saved_dim0, node._saved_dim1)
        one, other = (signed(dim) % len(before) for dim in dims)
        order[one], order[other] = order[other], order[one]
    return rows._replace(dimension=order.index(rows.place(before)) - len(before))


_RULES: dict[str, Callable[[Any, _Rows, Shape, Shape], _Rows | None]] = {
    **dict.fromkeys((BY_ELEMENT | _MORE_FUNCTIONS) - {"Stack", "Cat"}, _kept),
    **dict.fromkeys(("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(TURNED, _turned),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Gather"), _kept_unless_in),
    **dict.fromkeys(("Amax", "Amin", "Max", "Min", "Logsumexp", "Var", "Std", "LinalgVectorNorm"), _over_dimensions),
    **dict.fromkeys(("Sum", "Mean"), _added),
    **dict.fromkeys(("MseLoss", "SmoothL1Loss", "HuberLoss", "KlDiv", "SoftMarginLoss"), _loss),
    **dict.fromkeys(("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"), _loss),
    **dict.fromkeys(("NllLoss", "NllLoss2D", "MultiMarginLoss", "MultilabelMarginLoss"), _loss_of_classes),
    "Slice": _kept,
    "Select": _over_dimensions,
}
