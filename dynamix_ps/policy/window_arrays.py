"""One closed window as arrays: the form in which features, rewards and actions compute, live and simulated.

Arrays about workers have the shape (..., workers), those about the cluster (...,). Live there are no leading axes;
the simulator has one for its environments. What is unknown is NaN; a quantity nobody measures may stay the
scalar NaN, which broadcasts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.messages import LINK, NAN, WINDOW, LinkView, WindowRecord
from dynamix_ps.policy.base import LR_RULES, View

MEMORY_CEILING = 0.95  # of the memory that a worker may use

Array = NDArray[np.floating[Any]]
Known = Array | float  # an array, or one value for all


@dataclass(frozen=True)
class WindowArrays:
    """A window of every worker. Units and meanings are those of WindowRecord, LinkView and ServerView."""

    # workers
    present: NDArray[np.bool_]  # reported; all other values of an absent worker are NaN
    low: NDArray[np.int64]  # bounds of its batch size
    high: NDArray[np.int64]
    planned: NDArray[np.int64]  # b_i of the newest plan, of absent workers too
    samples: Array
    worker_duration_s: Array  # of the window, by the worker's own clock
    compute_s: Array
    push_pull_s: Array
    wait_s: Array
    loss: Array
    accuracy: Array  # its own; everybody's where its own is unknown
    accuracy_std: Known
    grad_sq_local: Array
    grad_norm_std: Known
    cpu_ratio: Known
    cpu_cores: Known
    throttled: Known
    memory_bytes: Known
    memory_ratio: Known
    gpu_utilisation: Known
    gpu_memory_ratio: Known
    push_bytes_per_s: Known
    pull_bytes_per_s: Known
    retransmits_per_s: Known
    rtt_s: Known
    push_busy: Known
    pull_retransmits_per_s: Known
    pull_busy: Known
    push_difference: Known
    # the cluster
    first_iteration: Array  # its number, from 0
    iterations: Array
    duration_s: Array  # of the window, as one worker measured it; the others differ by bookkeeping
    global_loss: Array
    global_accuracy: Array
    grad_sq_global: Array
    noise_variance: Array
    noise_signal: Array
    epoch: Known
    trained_ratio: Known
    lr_ratio: Known
    server_cpu: Known  # of the busiest server, over the cores it may use
    server_unread_bytes: Known
    server_unsent_bytes: Known
    # the job
    lr_rule: NDArray[np.int8]  # index into LR_RULES
    reference_batch: Array  # the global batch for which the learning rate is tuned

    @cached_property
    def memory_full(self) -> NDArray[np.bool_]:
        """Which workers should not grow, because hardly any of their memory, or their GPU's, is left."""
        return np.asarray((self.memory_ratio >= MEMORY_CEILING) | (self.gpu_memory_ratio >= MEMORY_CEILING))

    @cached_property
    def everyone(self) -> bool:
        """Whether all workers are present."""
        return bool(self.present.all())

    @cached_property
    def there(self) -> NDArray[np.bool_]:
        """Which workers there are, also if they have not reported: an empty place has bounds of 0."""
        return np.asarray(self.high > 0)

    @cached_property
    def all_there(self) -> bool:
        """Whether no place is empty."""
        return bool(self.there.all())

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """How many workers there are; shape (...,)."""
        return np.asarray(self.there.sum(axis=-1))

    @cached_property
    def smallest_batch(self) -> NDArray[np.int64]:
        """The smallest B that the bounds of all workers allow; shape (...,)."""
        return np.asarray(self.low.sum(axis=-1))

    @cached_property
    def largest_batch(self) -> NDArray[np.int64]:
        """The largest B that the bounds of all workers allow; shape (...,)."""
        return np.asarray(self.high.sum(axis=-1))

    @cached_property
    def global_batch(self) -> NDArray[np.int64]:
        """B of the newest plan; shape (...,)."""
        return np.asarray(self.planned.sum(axis=-1))


_NAMES = tuple(field.name for field in fields(WindowArrays))
_OF_WINDOW = tuple(WINDOW[name] for name in _NAMES if name in WINDOW)
_FROM_FIRST = ("duration_s",)  # every worker measures it; the first one's counts for all

# the fields of WindowRecord that are arrays of workers here, those that are one value, and the fields of LinkView
OF_RECORD = tuple(
    field.name for field in _OF_WINDOW if field.metric.scope == "worker" and field.name not in _FROM_FIRST
)
OF_CLUSTER = tuple(field.name for field in _OF_WINDOW if field.name not in OF_RECORD)
OF_LINK = tuple(name for name in _NAMES if name in LINK and name not in WINDOW)


def known_or(values: Known, otherwise: float = 0.0) -> Array:
    """The values with `otherwise` in place of what is unknown or infinite."""
    return np.where(np.isfinite(values), values, otherwise)


def mean_known(values: Known, otherwise: float = 0.0) -> Array:
    """Over the last axis, of what is known; `otherwise` where nothing is."""
    known = np.isfinite(values)
    if known.all():
        return np.asarray(np.sum(values, axis=-1).astype(np.float64) / np.shape(values)[-1])
    count = known.sum(axis=-1)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=-1) / np.maximum(count, 1), otherwise)


def arrays_of(view: View) -> WindowArrays:
    """A live view as arrays; it must have at least one record."""
    first = view.reported[0]
    bounds = np.array(view.bounds, dtype=np.int64)
    present = np.array([record is not None for record in view.records])
    columns: dict[str, Any] = _columns(view.records, present, (*OF_RECORD, "duration_s"))
    columns["worker_duration_s"] = columns["duration_s"]
    columns["accuracy"] = np.where(present & np.isnan(columns["accuracy"]), first.global_accuracy, columns["accuracy"])
    if view.ring:
        columns["push_busy"] = np.where(present, _largest(columns["push_busy"].tolist()), NAN)
    columns |= {name: np.float64(getattr(first, name)) for name in OF_CLUSTER}
    _leave_out_what_is_no_training(columns, view)
    # of an absent worker nothing is known
    columns |= _columns(view.links, present, OF_LINK) if view.links else dict.fromkeys(OF_LINK, NAN)
    return WindowArrays(
        present=present,
        low=bounds[:, 0],
        high=bounds[:, 1],
        planned=np.array(view.plan.batch_sizes, dtype=np.int64),
        server_cpu=_largest([_ratio(one.system.cpu_ratio, one.system.cpu_cores) for one in view.servers]),
        server_unread_bytes=_largest([one.unread_bytes for one in view.servers]),
        server_unsent_bytes=_largest([one.unsent_bytes for one in view.servers]),
        lr_rule=np.array(LR_RULES.index(view.lr_rule), dtype=np.int8),
        reference_batch=np.asarray(view.reference_batch or view.plan.global_batch, dtype=np.float64),
        **columns,
    )


def _columns(
    rows: tuple[WindowRecord | None, ...] | tuple[LinkView, ...], present: NDArray[np.bool_], names: tuple[str, ...]
) -> dict[str, NDArray[np.float64]]:
    """One array per field, NaN for absent workers."""
    there = [row for row, is_there in zip(rows, present.tolist(), strict=True) if is_there]
    values = chain.from_iterable(map(attrgetter(*names), there))
    table = np.fromiter(values, np.float64, len(there) * len(names)).reshape(len(there), len(names))
    if len(there) < len(present):
        known, table = table, np.full((len(present), len(names)), NAN)
        table[present] = known
    return dict(zip(names, np.ascontiguousarray(table.T), strict=True))


def _leave_out_what_is_no_training(columns: dict[str, Any], view: View) -> None:
    """While a worker evaluates alone, the others wait for it: the time of that is left out, for all of them."""
    outside_s = np.array([0.0 if record is None else max(record.outside_s, 0.0) for record in view.records])
    outside_s = known_or(outside_s)
    away_s = outside_s.max()
    if away_s > 0:
        columns["duration_s"] = columns["duration_s"] - away_s
        columns["worker_duration_s"] = columns["worker_duration_s"] - away_s
        columns["wait_s"] = np.maximum(columns["wait_s"] - (away_s - outside_s), 0.0)


def _ratio(value: float, unit: float) -> float:
    return value / unit if unit > 0 else NAN


def _largest(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=NAN)


def ratio(value: Known | Whole, unit: Known | Whole) -> Array:
    """value / unit, NaN where unit is not positive."""
    positive = np.asarray(unit) > 0
    return np.asarray(value / (unit if positive.all() else np.where(positive, unit, np.nan)))
