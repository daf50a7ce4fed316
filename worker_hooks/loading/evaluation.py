"""Evaluations by all workers together: each scores its share, and one sum gives the means. Pure.

A script's `score` function returns sums over a batch: a dict of named numbers, or one number, or a tuple of numbers,
which get the names `value`, and `value_1`, `value_2` and so on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from dynamix_ps.run_record.evaluations import higher_is_better

MOST_VALUES = 64  # the sum has this many places, because its size may not change from one evaluation to the next


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker scored: sums by name over its `samples`, of a data set of `length` (0: not known).

    Of `run.mean` they are the numbers of the script, times the weight of this worker in place of samples.

    `scores` is what the script returned last; the result has the same form.
    """

    length: int
    samples: float
    sums: dict[str, float]
    scores: Any


def evaluate_share(
    length: int,
    batches: Iterable[tuple[int, Any]],
    score: Callable[..., Any],
    number: Callable[[Any], float],
) -> Share:
    """Sums of `score` over this process's part of the data, whose whole has this length (0: not known).

    Args:
        batches: with their numbers of samples. One of 0 samples counts for nothing: from it the worker learns the
            names.

    Raises TrainingError if `score` returns something else than sums, or other names for another batch.
    """
    sums: dict[str, float] | None = None
    scored = 0
    for samples, batch in batches:
        scores = _called(score, batch)
        values = {name: _as_number(name, value, number) for name, value in named(scores).items()}
        if sums is None:
            sums = dict.fromkeys(values, 0.0)
        if list(values) != list(sums):
            raise TrainingError(f"score() returned {_listed(values)} after {_listed(sums)}; expected the same names")
        if samples:
            scored += samples
            sums = {name: total + values[name] for name, total in sums.items()}
    assert sums is not None, "at least one batch is scored"
    return Share(length, scored, sums, scores)


def weighted_share(values: Any, weight: float, number: Callable[[Any], float]) -> Share:
    """What `run.mean` got on this worker. Raises TrainingError if these are no numbers, or the weight is none."""
    if not 0 <= weight < math.inf:
        raise TrainingError(f"run.mean() got weight={weight!r}, expected a number from 0 on")
    said = "run.mean() got"
    numbers = {name: _as_number(name, value, number, said) for name, value in named(values, said).items()}
    return Share(0, weight, {name: value * weight if weight else 0.0 for name, value in numbers.items()}, values)


def named(scores: Any, said: str = "score() returned") -> dict[str, Any]:
    """What `score` returned, by name. Raises TrainingError where that is impossible."""
    if isinstance(scores, Mapping):
        values = dict(scores)
    elif isinstance(scores, (tuple, list)):
        values = dict(zip(_names_of(scores), scores, strict=True))
    else:
        values = {"value": scores}
    if not all(isinstance(name, str) for name in values):
        raise TrainingError(f"{said} a dict with the keys {_listed(values)}; expected names")
    if not 1 <= len(values) <= MOST_VALUES:
        raise TrainingError(f"{said} {len(values)} values, expected 1 to {MOST_VALUES}")
    return values


def packed(share: Share, rank: int, size: int) -> NDArray[np.float64]:
    """The numbers of one worker's share, float64, for the sum over all `size` workers: samples, sums, and for every
    worker a place for the length of its data set and one for a checksum of its names."""
    numbers = np.zeros(1 + MOST_VALUES + 2 * size)
    numbers[0] = share.samples
    numbers[1 : 1 + len(share.sums)] = list(share.sums.values())
    numbers[1 + MOST_VALUES + rank] = share.length
    numbers[1 + MOST_VALUES + size + rank] = 1 + zlib.crc32(repr(list(share.sums)).encode())  # 0: not in the sum
    return numbers


def samples_of(total: NDArray[np.float64]) -> int:
    """The samples that all workers have scored, from the sum of `packed`."""
    return round(float(total[0]))


def present(total: NDArray[np.float64], size: int) -> list[int]:
    """The workers that are in the sum of `packed`, rising. Those that are not are lost."""
    return [int(rank) for rank in np.flatnonzero(total[1 + MOST_VALUES + size :])]


def means(total: NDArray[np.float64], share: Share, size: int) -> dict[str, float]:
    """The means per sample from the sum of `packed` over all workers that are there.

    Raises TrainingError, on every worker, if the workers evaluated different data sets or returned different names.
    """
    there = present(total, size)
    lengths, checksums = (
        {rank: numbers[rank] for rank in there} for numbers in total[1 + MOST_VALUES :].reshape(2, size).tolist()
    )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length:.0f} samples on worker {rank}" for rank, length in lengths.items())
        raise TrainingError(
            f"run.evaluate() got data sets of different lengths: {found}; give every worker the whole data set, "
            "each evaluates its share of it"
        )
    if len(set(checksums.values())) > 1:
        first = there[0]
        others = [rank for rank, checksum in checksums.items() if checksum != checksums[first]]
        raise TrainingError(
            f"score() returned other names on worker {', '.join(map(str, others))} than on worker {first} (on this "
            f"worker: {_listed(share.sums)}); return the same names on every worker"
        )
    return dict(zip(share.sums, (total[1 : 1 + len(share.sums)] / total[0]).tolist(), strict=True))


def in_form_of(scores: Any, means: Mapping[str, float]) -> Any:
    """The means in the form in which `score` returned its sums: a dict, a tuple, or one number."""
    if isinstance(scores, Mapping):
        return dict(means)
    if not isinstance(scores, (tuple, list)):
        return means["value"]
    own_type: Callable[..., Any] | None = getattr(type(scores), "_make", None)  # of a named tuple
    return (own_type or tuple)(means.values())


def directions(
    names: Iterable[str], higher: str | Sequence[str] = (), lower: str | Sequence[str] = ()
) -> dict[str, bool]:
    """By name whether higher values are better, as far as that is declared or well known.

    Raises TrainingError for declared names that `score` does not return, and for names declared both ways.
    """
    names = list(names)
    declared = {name: False for name in ([lower] if isinstance(lower, str) else lower)}
    for name in [higher] if isinstance(higher, str) else higher:
        if name in declared:
            raise TrainingError(f"{name!r} is declared with higher_is_better and with lower_is_better; name it once")
        declared[name] = True
    unknown = [name for name in declared if name not in names]
    if unknown:
        raise TrainingError(f"a direction is declared for {_listed(unknown)}, but score() returns {_listed(names)}")
    known = {name: declared.get(name, higher_is_better(name)) for name in names}
    return {name: direction for name, direction in known.items() if direction is not None}


def _called(score: Callable[..., Any], batch: Any) -> Any:
    """`score` with the batch: a tuple as positional arguments, a dict as keywords, anything else as one argument."""
    if isinstance(batch, Mapping) and all(isinstance(key, str) for key in batch):
        return score(**batch)
    of_fields = isinstance(batch, (tuple, list)) and not all(isinstance(item, str) for item in batch)
    return score(*batch) if of_fields else score(batch)  # a list of strings is the batch of samples that are strings


def _names_of(scores: Sequence[Any]) -> Sequence[str]:
    own: Sequence[str] | None = getattr(scores, "_fields", None)
    return own or [f"value_{place}" for place in range(1, len(scores) + 1)]


def _as_number(name: str, value: Any, number: Callable[[Any], float], said: str = "score() returned") -> float:
    try:
        return number(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = getattr(value, "shape", None)
        found = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
        raise TrainingError(
            f"{said} a {found} as {name!r}, expected one number"
            + (": the sum over the samples of the batch" if said.startswith("score") else "")
        ) from error


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
