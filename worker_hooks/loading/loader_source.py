"""The script's DataLoader as the source of batches, in any framework: its order, cut anew by the sizes of the plan.

Which samples come next is decided here; torch/loader.py and mxnet/loader.py make batches of them, as the loader would.
"""

from __future__ import annotations

import ctypes
import signal
from abc import abstractmethod
from typing import Any

import numpy as np

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_set import check_map_style
from worker_hooks.loading.data_source import DataSource, Numbers
from worker_hooks.loading.drawn_order import DrawnOrder
from worker_hooks.sampling.sampler import Order

_PR_SET_PDEATHSIG = 1


class LoaderSource(DataSource):
    """A loader of the script.

    Attributes:
        drops_last: whether a pass leaves out what remains beyond whole batches.
    """

    drops_last = False
    _drawn: DrawnOrder | None = None

    @abstractmethod
    def _check_loader(self) -> None:
        """Raises TrainingError, which says what to do, if its batches cannot be cut anew."""

    @abstractmethod
    def _own_order(self) -> Order:
        """The order of its samples: a `DrawnOrder` where only its sampler knows it."""

    def check(self) -> None:
        self._check_loader()
        check_map_style(self.dataset)
        if self.order is not None:
            return
        self.order = self._own_order()
        if isinstance(self.order, DrawnOrder):
            self._drawn = self.order
            self.batch_size = self.batch_size or self._drawn.first_batch

    def samples_per_pass(self, global_batch: int) -> int:
        samples = len(self.dataset) if self._drawn is None else self._drawn.length
        return samples - samples % global_batch if self.drops_last else samples

    def numbers_once(self) -> Numbers:
        if self._drawn is None:
            return super().numbers_once()
        self._drawn.rewind()
        return self._drawn.first

    def code_of_pass(self, seed: int, epoch: int) -> int:
        return 0 if self._drawn is None else self._drawn.code(seed, epoch)

    def forget(self, epoch: int) -> None:
        if self._drawn is not None:
            self._drawn.forget(epoch)

    def _chosen(self, numbers: Numbers) -> list[int]:
        """These sample numbers; two of the sampler's own, which will count for nothing, where there are none."""
        if not len(numbers):
            numbers = np.arange(min(2, len(self.dataset))) if self._drawn is None else self._drawn.first[:2]
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
