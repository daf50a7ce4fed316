"""Samples to NDArrays."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.dataloader import default_batchify_fn
from numpy.typing import NDArray


def fetch(dataset: Any, indices: NDArray[np.int64]) -> Any:
    """A batch of a Gluon data set, put together as Gluon's DataLoader does.

    An ArrayDataset is indexed at once, any other is asked sample by sample. For no indices at all the first two samples
    are returned, so that the script's forward pass has something to run on; such a batch carries no weight.
    """
    chosen = indices if len(indices) else np.arange(min(2, len(dataset)), dtype=np.int64)
    if isinstance(dataset, ArrayDataset):
        columns = [_rows(column, chosen) for column in dataset._data]
        return columns if len(columns) > 1 else columns[0]
    return default_batchify_fn([dataset[i] for i in chosen.tolist()])


def _rows(column: Any, indices: NDArray[np.int64]) -> Any:
    if isinstance(column, mx.nd.NDArray):
        return mx.nd.take(column, mx.nd.array(indices, dtype=np.int64, ctx=column.context))
    if isinstance(column, np.ndarray):
        return mx.nd.array(column[indices], dtype=column.dtype)
    return default_batchify_fn([column[i] for i in indices.tolist()])
