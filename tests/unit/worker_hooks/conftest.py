"""No training outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.open_trainings import end_trainings
from worker_hooks.torch import late_gradients, late_weights


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    yield
    end_trainings()
    for late in tuple(late_gradients._watching):
        late.weights.end(tuple(late_weights._owners))
        late.end()
