"""Whether the rows of a tensor that a model gets are those of the batch, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

FEWEST_ROWS = 3  # of fewer a straight line shows nothing
MOST_LEFT_OUT = 8  # values of a row, such as the last token (chosen by us)
_EXACT = 1e-3  # of the range of a column: what a value may be off, as by rounding (chosen by us)
_EXACT_HALVES = 0.02


class BatchRows:
    """The tensors of a batch, as the script gets them."""

    def __init__(self, data: Any, samples: int) -> None:
        self._tensors: list[tuple[torch.Tensor, int]] = []
        for leaf in pytree.tree_leaves(data):
            if _is_plain(leaf) and leaf.dim() and len(leaf) == samples:
                self._tensors.append((leaf, leaf._version))

    def strange(self, given: Sequence[torch.Tensor]) -> str:
        """Why these tensors may have other rows than the batch, or in another order; empty: they have not."""
        own = [tensor for tensor, version in self._tensors if tensor._version == version]
        if len(own) < len(self._tensors):
            return "the script changes its batches in place, so which samples their rows are is not known"
        with torch.no_grad():
            for one in given:
                if not any(_is_same(one, other) or _is_scaled(one, other) for other in own):
                    return (
                        f"the script gives its model a tensor of shape {tuple(one.shape)} that is not one of the "
                        "batch, nor one of the batch times a factor, so which samples its rows are is not known: "
                        "augment, mix or encode samples in the data set"
                    )
        return ""


def _is_plain(one: object) -> bool:
    return isinstance(one, torch.Tensor) and one.layout == torch.strided and not one.is_inference()


def _is_same(one: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether each row lies within that of `own`, or has its values, or most of them, one after the other."""
    if not _is_plain(one) or not one.numel() or one.numel() > own.numel():
        return False
    if _lies_within(one, own):
        return True
    seen, known = _columns(one), _columns(own).to(one.device, one.dtype)
    left_out = known.shape[1] - seen.shape[1]
    shifts = range(left_out + 1) if left_out <= MOST_LEFT_OUT else ()
    return any(torch.equal(seen, known[:, shift : shift + seen.shape[1]]) for shift in shifts)


def _lies_within(one: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether it is a view of `own`, or of a part of each row."""
    if one.device != own.device or one.dtype != own.dtype or not own.is_contiguous():
        return False
    first, row = one.storage_offset() - own.storage_offset(), own.stride(0)
    last = first + sum((size - 1) * step for size, step in zip(one.shape[1:], one.stride()[1:], strict=True))
    is_there = one.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
    return is_there and one.stride(0) == row and 0 <= first <= last < row


def _is_scaled(one: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether each column is one of `own`, times a factor above 0, plus a constant.

    Such a map keeps the order of values. So where the rows are those of `own` in another order, each value is what it
    would be in the same order.
    """
    if not _is_plain(one) or not one.is_floating_point() or one.numel() != own.numel() or len(one) < FEWEST_ROWS:
        return False
    dtype = torch.float64 if one.dtype == torch.float64 else torch.float32
    seen, known = _columns(one).to(dtype), _columns(own).to(one.device, dtype)
    lowest, highest = known.argmin(0, keepdim=True), known.argmax(0, keepdim=True)
    low, span = known.gather(0, lowest), known.gather(0, highest) - known.gather(0, lowest)
    seen_low = seen.gather(0, lowest)
    seen_span = seen.gather(0, highest) - seen_low
    varies = span > 0
    if not bool(varies.any()) or bool(((seen_span > 0) != varies).any()):
        return False
    expected = seen_low + (known - low) / torch.where(varies, span, 1) * seen_span
    exact = _EXACT if one.dtype.itemsize > 2 else _EXACT_HALVES
    return bool(((seen - expected).abs() <= exact * seen_span + (~varies) * exact * seen_low.abs()).all())


def _columns(one: torch.Tensor) -> torch.Tensor:
    """A row for each sample."""
    return one.detach().reshape(len(one), -1)
