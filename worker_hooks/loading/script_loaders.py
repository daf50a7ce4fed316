"""What the loaders of a script share in all frameworks.

A loader's order is cut anew by the sizes of the plan; torch/data/loader.py and mxnet/loader.py make batches of it.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_set import check_map_style
from worker_hooks.loading.data_source import DataSource, Numbers
from worker_hooks.sampling.sampler import Order

_PR_SET_PDEATHSIG = 1


def put_in_order(source: DataSource, own_order: Callable[[], Order]) -> None:
    """From its first check on, a loader's samples come in the order of its sampler, and its batches have their size."""
    check_map_style(source.dataset)
    if source.order is None:
        source.order = own_order()
    if source.drawn is not None:
        source.batch_size = source.batch_size or source.drawn.first_batch


def chosen_from(source: DataSource, numbers: Numbers) -> list[int]:
    """These sample numbers; two of the sampler's own, which will count for nothing, where there are none."""
    if not len(numbers):
        numbers = np.arange(min(2, len(source.dataset))) if source.drawn is None else source.drawn.first[:2]
    return numbers.tolist()  # type: ignore[no-any-return]


def end_with_parent() -> None:
    """What a process of a loader does first: it will not outlive the training process, whose sockets and shared memory
    it may have inherited."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def refused(loader: Any, why: str) -> TrainingError:
    """The error for a loader whose batches cannot be cut anew."""
    return TrainingError(f"the hook cannot take batches out of this {type(loader).__name__}: {why}")


def gives_a_part(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler gives each process a part of the data set, by the names that such samplers have: torch's
    DistributedSampler, and the SplitSampler of scripts for Gluon."""
    if any(getattr(sampler, name, 1) > 1 for name in ("num_replicas", "num_parts")):
        return True
    samples = getattr(sampler, "part_len", None)
    return samples is not None and samples < len(dataset)
