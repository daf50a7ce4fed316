"""What a worker and a server of the BytePS plane send each other, as far as the rules of rounds go. Pure.

The messages of `dynamix_ps/byteps_build/sources/pieces.h`, with the contribution as an object in place of bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[int, int]  # number of a buffer, and of the piece in it
Value: TypeAlias = Hashable  # one worker's contribution to a round; no two contributions are equal


class ProtocolError(AssertionError):
    """A process sends or does what the protocol rules out. The C++ plane ends the process."""


@dataclass(frozen=True, slots=True)
class Push:
    """Worker to server: one piece of a contribution."""

    key: Key
    round: int
    generation: int
    contributions: int  # how many make the sum
    value: Value


@dataclass(frozen=True, slots=True)
class Answer:
    """Server to each contributor: the complete sum of a piece."""

    key: Key
    round: int
    generation: int
    values: frozenset[Value]
