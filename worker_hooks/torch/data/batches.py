"""Samples to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from worker_hooks.loading.data_set import not_stackable, samples_at


def fetch(dataset: Any, indices: NDArray[np.int64]) -> Any:
    """Collated samples of a map-style data set.

    Tensor data sets are read at once; a data set with `__getitems__` gets the whole list; any other is
    asked sample by sample. For no indices at all the first two samples are returned, so that the
    script's forward pass has something to run on, batch norm too; such a batch carries no weight.

    Raises TrainingError for samples that cannot be stacked.
    """
    chosen = indices if len(indices) else np.arange(min(2, len(dataset)), dtype=np.int64)
    if isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__:
        rows = torch.from_numpy(chosen)
        return tuple(_rows_of(tensor, rows) for tensor in dataset.tensors)
    return stack(samples_at(dataset, chosen.tolist()))


def _rows_of(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`tensor[rows]`. Where the rows are in one piece, `index_select` copies them as such, in a fifth of the time."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_quantized
    if is_plain and tensor.device == rows.device and tensor.is_contiguous():
        return tensor.index_select(0, rows)
    return tensor[rows]


def stack(samples: list[Any]) -> Any:
    """A batch of these samples. Raises TrainingError if they cannot be stacked."""
    try:
        return default_collate(samples)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise not_stackable(samples, error) from error


def pinned(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """`collate`, with its batches in page-locked memory, from which a GPU can copy while the script goes on."""
    return lambda samples: pin_memory(collate(samples))  # type: ignore[no-untyped-call]
