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

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker_hooks.switch import VERSION_BITS, agreed_version, version_bits

_VOTES = 5
_WAITED = _VOTES + VERSION_BITS


class Contribution(NamedTuple):
    """What one worker puts into the tail of one iteration."""

    samples: int
    loss_sum: float
    correct: float  # NaN: the script does not tell
    grad_sq: float  # NaN: not measured in this iteration
    plan_version: int
    waited_s: float


class GlobalView(NamedTuple):
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
    return _WAITED + 2 * workers


def encode(mine: Contribution, rank: int, workers: int, out: NDArray[np.floating]) -> None:
    """Write the tail of worker `rank` to `out`, shape (length(workers),). A broken loss becomes a mark, not a NaN."""
    finite = math.isfinite(mine.loss_sum)
    told = not math.isnan(mine.correct)
    out[:_VOTES] = (
        mine.samples,
        mine.loss_sum if finite else 0.0,
        mine.correct if told else 0.0,
        mine.samples if told else 0.0,
        mine.grad_sq * mine.samples if math.isfinite(mine.grad_sq) else 0.0,
    )
    out[_VOTES:_WAITED] = version_bits(mine.plan_version)
    out[_WAITED:] = 0.0
    out[_WAITED + rank] = mine.waited_s
    if not finite:
        out[_WAITED + workers + rank] = 1.0


def decode(total: NDArray[np.floating], workers: int) -> GlobalView:
    """Read the summed tail. Means over nothing are NaN."""
    samples, loss, correct, judged, grad_sq = total[:_VOTES].tolist()
    slots = total[_WAITED:].tolist()
    broken = slots[workers:]
    return GlobalView(
        samples=round(samples),
        loss=loss / samples if samples else math.nan,
        accuracy=correct / judged if judged else math.nan,
        grad_sq_local=grad_sq / samples if samples else math.nan,
        agreed_version=agreed_version(total[_VOTES:_WAITED], workers),
        waited_s=tuple(slots[:workers]),
        broken_ranks=tuple(rank for rank in range(workers) if broken[rank]) if any(broken) else (),
    )
