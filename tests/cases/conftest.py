"""Where workers of scripts are forked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forked import ForkServer


@pytest.fixture(scope="package")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.torch") as running:
        yield running
