"""`run.loader`: the script's loader, in whose loops a worker gets its own batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_hooks.training import Training


class RunLoader:
    """Each loop over it is a pass over the data, as `run.batches(epochs=1)` is; `loss.backward()` in it is summed.

    All else is an attribute of the loader, or data set, that `attach` got.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    def __iter__(self) -> Iterator[Any]:
        return self._training.loops.batches(1, None, sums_backward=True)

    def __len__(self) -> int:
        """Batches in a pass if the plan stays as it is. Raises TypeError in the first pass over a stream."""
        count = self._training.progress.batches_per_pass
        if not count:
            raise TypeError("run.loader has no len() in the first pass over a stream")
        return count

    def __getattr__(self, name: str) -> Any:
        source = self._training.data.source
        return getattr(getattr(source, "loader", source), name)
