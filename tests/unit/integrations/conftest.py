"""Small trainings in forked workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ForkServer

Train = Callable[..., list[dict[str, Any]]]
FRAMEWORKS = ("accelerate", "lightning", "transformers")


@pytest.fixture(scope="package")
def server() -> Iterator[ForkServer]:
    """Has imported all frameworks that are installed."""
    found = [f"dynamix_ps.integrations.{name}" for name in FRAMEWORKS if find_spec(name)]
    with ForkServer(",".join([*found, "tests.unit.integrations.cases"])) as running:
        yield running


@pytest.fixture(scope="module")
def train(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Runs a function of cases.py in one worker per size; returns their results. All must end well.

    `settings`: keys of the cluster file.
    """

    def train(call: str, sizes: tuple[int, ...], job: Any = None, **settings: Any) -> list[Any]:
        folder: Path = tmp_path_factory.mktemp(call)
        settings = {"mode": "observe", "metrics": {"network": "off"}} | settings
        workers = server.run(f"tests.unit.integrations.cases:{call}", job, folder, sizes, **settings)
        assert [worker.code for worker in workers] == [0] * len(sizes), workers[0].output
        return [worker.result for worker in workers]

    return train
