"""Samples to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate


def fetch(dataset: Any, indices: NDArray[np.int64]) -> Any:
    """Collated samples of a map-style data set.

    Tensor data sets are indexed at once; a data set with `__getitems__` gets the whole list; any other is
    asked sample by sample. For no indices at all the first two samples are returned, so that the
    script's forward pass has something to run on, batch norm too; such a batch carries no weight.
    """
    chosen = indices if len(indices) else np.arange(min(2, len(dataset)), dtype=np.int64)
    if isinstance(dataset, TensorDataset):
        rows = torch.from_numpy(chosen)
        return tuple(tensor[rows] for tensor in dataset.tensors)
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(chosen.tolist()))
    return default_collate([dataset[i] for i in chosen.tolist()])
