"""No training outlives its test: an open one watches whatever else steps and loads in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker_hooks.torch import run as torch_run


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    yield
    for run in list(torch_run.open_runs):
        run.close()
