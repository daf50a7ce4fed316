"""The tail of the gradient buffer: what all workers learn from the sum, at no extra message. Pure.

Layout, all values of the buffer's own float type, summed over workers like the gradients before them:

    samples        b_i really processed; its sum is B                                        1
    loss           b_i times the mean loss of worker i                                       1
    correct        correctly classified samples                                              1
    judged         samples for which the script told how many were correct                   1
    grad_sq        b_i * |g_i|^2, g_i the mean gradient of worker i                           1
    votes          bits of the newest plan held (switch.py)                       VERSION_BITS
    waited         seconds worker i waited in the iteration before, in its own slot           N
    broken         1 in the slot of a worker whose loss is not finite                         N

Counts stay exact in float32 up to 2^24 samples per iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker_hooks.switch import VERSION_BITS, agreed_version, version_bits

_SCALARS = 5


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one worker puts into the tail of one iteration."""

    samples: int
    loss_sum: float
    correct: float  # NaN: the script does not tell
    grad_sq: float
    plan_version: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class GlobalView:
    """What every worker reads from the summed tail: the same values on all of them."""

    samples: int
    loss: float
    accuracy: float
    grad_sq_local: float  # sample-weighted mean over workers of |g_i|^2
    agreed_version: int | None
    waited_s: tuple[float, ...]
    broken_ranks: tuple[int, ...]


def length(workers: int) -> int:
    """Number of values in the tail for `workers` workers."""
    return _SCALARS + VERSION_BITS + 2 * workers


def encode(mine: Contribution, rank: int, workers: int) -> NDArray[np.float64]:
    """The tail of worker `rank`, float64, shape (length(workers),). A non-finite loss becomes a mark, not a NaN."""
    tail = np.zeros(length(workers))
    finite = bool(np.isfinite(mine.loss_sum))
    told = not np.isnan(mine.correct)
    tail[:_SCALARS] = (
        mine.samples,
        mine.loss_sum if finite else 0.0,
        mine.correct if told else 0.0,
        mine.samples if told else 0.0,
        mine.grad_sq * mine.samples if np.isfinite(mine.grad_sq) else 0.0,
    )
    votes = _SCALARS + VERSION_BITS
    tail[_SCALARS:votes] = version_bits(mine.plan_version)
    tail[votes + rank] = mine.waited_s
    tail[votes + workers + rank] = 0.0 if finite else 1.0
    return tail


def decode(total: NDArray[np.floating], workers: int) -> GlobalView:
    """Read the summed tail. Means over nothing are NaN."""
    samples, loss, correct, judged, grad_sq = (float(value) for value in total[:_SCALARS])
    votes = _SCALARS + VERSION_BITS
    return GlobalView(
        samples=round(samples),
        loss=loss / samples if samples else float("nan"),
        accuracy=correct / judged if judged else float("nan"),
        grad_sq_local=grad_sq / samples if samples else float("nan"),
        agreed_version=agreed_version(total[_SCALARS:votes].tolist(), workers),
        waited_s=tuple(total[votes : votes + workers].tolist()),
        broken_ranks=tuple(np.flatnonzero(total[votes + workers :]).tolist()),
    )
