"""Samples to NDArrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.dataloader import default_batchify_fn
from numpy.typing import NDArray

from worker_hooks.loading.data_set import not_stackable, samples_at


def fetch(dataset: Any, indices: NDArray[np.int64]) -> Any:
    """A batch of a Gluon data set, put together as Gluon's DataLoader does; dicts and strings work too.

    An ArrayDataset is indexed at once; a data set with `__getitems__` gets the whole list; any other is asked sample by
    sample. For no indices at all the first two samples are returned, so that the script's forward pass has something to
    run on; such a batch carries no weight.

    Raises TrainingError for samples that cannot be stacked.
    """
    chosen = indices if len(indices) else np.arange(min(2, len(dataset)), dtype=np.int64)
    if isinstance(dataset, ArrayDataset) and type(dataset).__getitem__ is ArrayDataset.__getitem__:
        columns = [_rows(column, chosen) for column in dataset._data]
        return columns if len(columns) > 1 else columns[0]
    samples = samples_at(dataset, chosen.tolist())
    try:
        return _stacked(samples)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise not_stackable(samples, error) from error


def _stacked(samples: Any) -> Any:
    first = samples[0]
    if isinstance(first, str):
        return list(samples)
    if isinstance(first, Mapping):
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        columns = [_stacked(column) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    if len({sample.shape for sample in samples if isinstance(sample, mx.nd.NDArray)}) > 1:
        raise ValueError("the shapes differ")  # MXNet itself would say so only when the batch is read
    return default_batchify_fn(list(samples))


def _rows(column: Any, indices: NDArray[np.int64]) -> Any:
    if isinstance(column, mx.nd.NDArray):
        return mx.nd.take(column, mx.nd.array(indices, dtype=np.int64, ctx=column.context))
    if isinstance(column, np.ndarray):
        return mx.nd.array(column[indices], dtype=column.dtype)
    return default_batchify_fn([column[i] for i in indices.tolist()])
