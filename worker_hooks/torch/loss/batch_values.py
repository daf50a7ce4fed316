"""Values of the whole batch that a loss is computed from: then it is no mean over samples.

Found are pairs of samples, and sums or means over the samples from which anything but sums and factors is computed: the
root of a mean, a ratio of sums, a variance, a correlation. Over rows that `run.gather` has given they are right.
"""

from __future__ import annotations

from typing import Any

from worker_hooks.torch.loss.gathered_rows import GatheredRows
from worker_hooks.torch.loss.graph_nodes import (
    BY_ELEMENT,
    LINEAR,
    MOST_NODES,
    OF_ROWS,
    SAME_VALUES,
    TURNED,
    edges_of,
    has_data,
    input_shapes,
    is_multiple,
    is_parameter,
    joins_numbers,
    kind_of,
    nodes_below,
    reduction_of,
    signed,
    takes_data,
)

_STRAIGHT = SAME_VALUES | TURNED | (LINEAR - {"Mul", "Div"}) | {"Sum", "Mean", "Index", "Gather", "Where"}
_CURVED_SUMS = {"Var", "Std", "LinalgVectorNorm", "Logsumexp", "Softmax", "LogSoftmax"}


def is_of_pairs(node: Any, samples: int) -> bool:
    """Whether a node joins outputs of a model for all samples with outputs for all samples: by a product of matrices,
    by distances, or element by element where `z[:, None]` meets `z[None]`."""
    kind, edges, shapes = kind_of(node), edges_of(node), input_shapes(node)
    if kind == "Pdist":
        return _are_samples(shapes[0][:1], samples)
    if len(edges) != 2 or None in edges or any(map(is_parameter, edges)):
        return False
    first, second = shapes
    if kind == "Mm":
        return _are_samples((node._saved_self_sym_sizes[0], node._saved_mat2_sym_sizes[1]), samples)
    if kind == "Bmm":
        return first[:1] == (1,) and _are_samples((first[1], second[2]), samples)
    if kind in ("Cdist", "EuclideanDist"):
        return _are_samples(first[-2:-1] + second[-2:-1], samples)
    by_element = kind in BY_ELEMENT and first[1:2] == (1,) and second[:1] == (1,)
    return by_element and _are_samples(first[:1] + second[1:2], samples) and has_data(node)


def _are_samples(sizes: tuple[int, ...], samples: int) -> bool:
    return bool(sizes) and all(is_multiple(size, samples) for size in sizes)


def has_value_of_all(root: Any, samples: int) -> bool:
    """Whether a loss has a sum or mean over the samples in it that anything but sums and factors is computed from."""
    left, seen = [(root, False)], set[Any]()
    while left and len(seen) < MOST_NODES:
        node, is_curved = one = left.pop()
        if node is None or one in seen:
            continue
        seen.add(one)
        kind, edges = kind_of(node), edges_of(node)
        is_all = (is_curved or kind in _CURVED_SUMS) and _is_over_batch(node, samples)
        if is_all and has_data(node) and not has_gathered_rows(node):
            return True
        if kind not in OF_ROWS and not reduction_of(node):
            continue
        if kind in ("Mul", "Div"):
            bends = sum(edge is not None and (takes_data(edge) or has_data(edge)) for edge in edges) > 1
        else:
            bends = kind not in _STRAIGHT
        left += [(edge, is_curved or bends) for edge in edges]
    return False


def _is_over_batch(node: Any, samples: int) -> bool:
    """Whether a node makes one value of all samples, which are its rows."""
    kind = kind_of(node)
    if kind == "Mm":
        of_parameters = None in edges_of(node) or any(map(is_parameter, edges_of(node)))
        return not of_parameters and is_multiple(node._saved_self_sym_sizes[1], samples)
    is_sum = kind in ("Sum", "Mean") and not joins_numbers(node)
    if not (is_sum or kind in _CURVED_SUMS or reduction_of(node) in ("mean", "sum")):
        return False
    shape, dims = input_shapes(node)[0], getattr(node, "_saved_dim", None)
    dims = (dims,) if isinstance(dims, int) else dims or range(len(shape))
    return any(signed(dim) in (0, -len(shape)) for dim in dims) and _are_samples(shape[:1], samples)


def has_gathered_rows(node: Any) -> bool:
    """Whether rows of all workers are in it, that `run.gather` has given."""
    return any(kind_of(one) == GatheredRows.__name__ for one in nodes_below(node, None))
