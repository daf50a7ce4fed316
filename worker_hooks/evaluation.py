"""Each worker's share of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion
from dynamix_ps.errors import TrainingError

EVALUATION_VALUES = 9  # the number of samples, up to seven sums, and the number of sums (times the samples)


def evaluate_share(
    dataset: Any,
    fetch: Callable[[Any, NDArray[np.int64]], Any],
    score: Callable[[Any, Any], Sequence[Any]],
    number: Callable[[Any], float],
    shares: Sequence[int],
    rank: int,
    batch_size: int,
) -> NDArray[np.float64]:
    """Sums of `score` over this worker's part of `dataset`.

    The parts are in proportion to the present batch sizes (`shares`), so that fast and slow workers finish together.
    Returns shape (EVALUATION_VALUES,): the number of samples, the sums, zeros, and last the number of sums times the
    number of samples. From the total of this last value a worker without a share learns the number of sums.
    """
    parts = apportion(len(dataset), shares)
    first, last = sum(parts[:rank]), sum(parts[: rank + 1])
    sums = np.zeros(EVALUATION_VALUES)
    for start in range(first, last, batch_size):
        rows = np.arange(start, min(start + batch_size, last), dtype=np.int64)
        values = [number(value) for value in score(*fetch(dataset, rows))]
        if not 2 <= len(values) <= EVALUATION_VALUES - 2:
            raise TrainingError(f"score() returned {len(values)} values, expected 2 to {EVALUATION_VALUES - 2}")
        sums[0] += len(rows)
        sums[-1] += len(rows) * len(values)
        sums[1 : 1 + len(values)] += values
    return sums
