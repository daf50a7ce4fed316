"""Waiting times between attempts: exponential, with jitter. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator


def backoff_s(first_s: float, largest_s: float, rng: random.Random) -> Iterator[float]:
    """Endless waiting times in seconds.

    The limit doubles from `first_s` up to `largest_s`. Each time is a random part (50-100 %) of the limit, so that the
    workers of one arbitrator do not reconnect all at once.
    """
    limit = first_s
    while True:
        yield limit * rng.uniform(0.5, 1.0)
        limit = min(2 * limit, largest_s)
