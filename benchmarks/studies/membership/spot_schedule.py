"""When machines of the spot study are taken away and come back, by a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MACHINES, FEWEST = 4, 2  # in all, and there at least
FIRST_S = (8.0, 16.0)  # until the first one goes
BETWEEN_S = (12.0, 28.0)  # from one that goes to the next
AWAY_S = (10.0, 26.0)
UNTIL_S = 1_000.0  # longer than any training takes

Kind = Literal["notice", "kill", "back"]


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_s` of training a machine gets notice and goes, is gone without a word, or is back."""

    at_s: float
    machine: int
    kind: Kind


def schedule(seed: int) -> tuple[Change, ...]:
    """All changes in the order of their times. Of two machines that go one after the other, one has notice."""
    return tuple(sorted(_changes(random.Random(f"spot {seed}")), key=lambda change: change.at_s))


def _changes(chance: random.Random) -> Iterator[Change]:
    back_s = [0.0] * MACHINES
    kinds: list[Kind] = []
    at_s = chance.uniform(*FIRST_S)
    while at_s < UNTIL_S:
        there = [machine for machine, since_s in enumerate(back_s) if since_s <= at_s]
        if len(there) > FEWEST:
            kinds = kinds or chance.sample(("notice", "kill"), 2)
            machine = chance.choice(there)
            back_s[machine] = at_s + chance.uniform(*AWAY_S)
            yield Change(at_s, machine, kinds.pop())
            yield Change(back_s[machine], machine, "back")
        at_s += chance.uniform(*BETWEEN_S)
