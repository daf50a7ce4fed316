"""No training outlives its test: an open one watches whatever else steps and loads in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker_hooks.torch.adapter import open_adapters


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    yield
    for adapter in list(open_adapters):
        adapter.training.close()
