"""No training outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.open_trainings import end_trainings


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    yield
    end_trainings()
