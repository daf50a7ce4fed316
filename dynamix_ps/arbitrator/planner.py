"""From a policy's answer to a plan: the guard, and version numbers. Pure; every answer gives a plan that is safe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynamix_ps.messages import LARGEST_VERSION, NAN, Plan
from dynamix_ps.rpc.plan_rules import Bounds
from dynamix_ps.shares import within_total


@dataclass(frozen=True, slots=True)
class Guarded:
    """Sizes that are safe to publish, and whether the guard had to change what the policy proposed."""

    batch_sizes: tuple[int, ...]
    corrected: bool


def guard(proposed: Sequence[float], current: Sequence[int], bounds: Bounds, largest_total: float = NAN) -> Guarded:
    """Sizes within every worker's bounds, for any proposal.

    Sizes that together exceed `largest_total` shrink in proportion, as far as the bounds allow. NaN keeps a worker's
    current size. A proposal of the wrong length, or of 0 for all workers, keeps all current sizes. The result is always
    within the bounds.
    """
    if len(proposed) == len(current):
        numbers = (now if math.isnan(value) else value for value, now in zip(proposed, current, strict=True))
        sizes = within_total(_within(numbers, bounds), bounds, largest_total)
        if any(sizes):
            return Guarded(sizes, corrected=any(a != b for a, b in zip(sizes, proposed, strict=True)))
    return Guarded(within_total(_within(current, bounds), bounds, largest_total), corrected=True)


def next_plan(sizes: tuple[int, ...], current: Plan, newest_version: int) -> Plan | None:
    """A plan with a new version, or None if the sizes stay or no version is left.

    Args:
        newest_version: the highest version in the journal and in registrations.
    """
    version = max(current.version, newest_version) + 1
    return None if sizes == current.batch_sizes or version > LARGEST_VERSION else Plan(version, sizes)


def _within(values: Iterable[float], bounds: Bounds) -> tuple[int, ...]:
    return tuple(round(min(max(value, low), high)) for value, (low, high) in zip(values, bounds, strict=True))
