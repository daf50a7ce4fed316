"""The global random generators of torch, numpy and Python, borrowed for a while."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np


def derived_seed(*numbers: int) -> int:
    """A seed of 32 bits that these numbers decide, each at least 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seed_generators(number: int) -> None:
    """Seed the global generators with 32 bits."""
    random.seed(number)
    np.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(number)  # of the CPU alone


@contextmanager
def generators_kept() -> Iterator[Callable[[int], None]]:
    """Yields `seed_generators`; restores the generators in the end."""
    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state() if torch else None
    try:
        yield seed_generators
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch:
            torch.set_rng_state(torch_state)
