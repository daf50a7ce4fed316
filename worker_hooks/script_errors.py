"""Errors of a script that come from what the hook does differently: what to write instead. Pure."""

from __future__ import annotations

import re

from dynamix_ps.errors import TrainingError


def of_sizes(error: BaseException, samples: int, before: int) -> TrainingError | None:
    """The error for a shape that fits the batch before, with `before` samples, and not this one; none: it is another.

    `samples`: of the batch at hand.
    """
    if not before or samples == before or not isinstance(error, RuntimeError | ValueError):
        return None
    numbers = {int(number) for number in re.findall(r"\d+", str(error))}
    if not {samples, before} <= numbers:
        return None
    return TrainingError(
        f"this worker's batch has {samples} samples and the one before had {before}, as batch sizes change while "
        "training runs: what goes from batch to batch, such as the state of an LSTM, must be made anew for the samples "
        "at hand, or be kept by sample"
    )


def of_threads(error: BaseException, what: str, instead: str) -> BaseException:
    """`error`, or what to do if it says that `what`, which another thread reads, belongs to the thread that made it."""
    if "same thread" not in str(error).lower():
        return error
    return TrainingError(
        f"{what} is read ahead, in a thread of its own, and belongs to another one ({error}); {instead}"
    )
