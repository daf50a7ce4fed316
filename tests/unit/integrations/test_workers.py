"""What a framework asks of all workers, where one of them is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamix_ps.errors import PeerLostError
from dynamix_ps.integrations.workers import WorkerGroup


class Sums:
    """Sums in which the others add nothing but that so many of them are there."""

    def __init__(self, others: int) -> None:
        self._others = others

    def declare(self, name: str) -> None:
        pass

    def total(self, name: str, values: Any) -> Any:
        return values + np.array([0.0] * (len(values) - 1) + [self._others])


def workers(others: int) -> WorkerGroup:
    found = object.__new__(WorkerGroup)
    found._comm, found.rank, found.size, found.run = Sums(others), 0, 3, None  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("values", [1, 16, 5000])
def test_nobody_takes_zeros_for_the_values_of_a_lost_worker(values: int) -> None:
    mine = np.arange(values, dtype=np.float64)
    assert (workers(others=2).each(mine, "all_gather()")[0] == mine).all()
    for call in (
        lambda: workers(others=1).each(mine, "all_gather()"),
        lambda: workers(others=1).from_rank_0("text", "broadcast()"),
        lambda: workers(others=1).meet("barrier()"),
    ):
        with pytest.raises(PeerLostError, match=r"\(\) needs all workers, and one of them is lost"):
            call()
