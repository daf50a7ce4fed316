"""Errors of a script that come from what the hook does differently, or from lack of memory: what to do. Pure."""

from __future__ import annotations

import re

from dynamix_ps.errors import TrainingError

_SAYS_SO = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
)


class BatchInHand:
    """The batch that the script has, or had when it left the loop, as errors speak of it.

    Attributes:
        samples: of this worker.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._before = 0  # of the batch before it
        self._largest = 0  # that has fitted so far

    def take(self, samples: int) -> None:
        """The script gets a batch of so many samples."""
        self._before, self.samples = self.samples, samples

    def fitted(self, samples: int) -> None:
        """A batch of so many samples was trained."""
        self._largest = max(self._largest, samples)

    def explained(
        self, error: BaseException, where: str, memory: str, largest_sample: int, survives: bool
    ) -> BaseException:
        """`error`, or one that says what to do: if memory has run out, or a shape is of the sizes before.

        Args:
            where: says which worker is out of memory.
            memory: of the cluster file.
            largest_sample: in the unit of `at_once`.
            survives: `memory: auto` is possible.
        """
        samples, fitted = self.samples, self._largest
        if not is_out_of_memory(error):
            return of_sizes(error, samples, self._before) or error
        if not samples:
            return error
        known = f"{fitted} fitted before" if fitted else "no batch fitted before"
        smaller = fitted if 0 < fitted < samples else max(samples // 2, 1)
        advice = (
            "memory: auto divides what the model computes, and this is outside of it, or a batch that fitted needs "
            f"more now; set at_once or `max` below {samples} for this worker"
            if memory == "auto"
            else f"set at_once: {largest_sample * smaller} for this worker"
            + (", or memory: auto," if survives else "")
            + " in the cluster file"
        )
        return TrainingError(f"{where} with a batch of {samples} samples; {known}: {advice} ({first_line(error)})")


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch, MXNet or one of their libraries says that memory has run out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _SAYS_SO)


def first_line(error: BaseException) -> str:
    """The error in one line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
