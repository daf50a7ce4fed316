"""A server's part in the sums, as the reference for the C++ plane. Pure.

The rules are those of `dynamix_ps/byteps_build/sources/round_table.h` in elastic jobs. A sum that was answered stays as
it is: the C++ table keeps the memory of an answer until it has left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tests.models.membership.pieces import Answer, Key, ProtocolError, Push, Value


@dataclass(slots=True)
class _Sum:
    """The open round of one piece."""

    round: int = 0
    generation: int = 0
    contributions: int = 0
    parts: dict[int, Value] = field(default_factory=dict)  # by sender


class RoundTable:
    """The sums of one server. Senders are workers' numbers."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}
        self._fences: list[tuple[int, int]] = []  # generation and round

    def push(self, sender: int, push: Push) -> list[tuple[int, Answer]]:
        """A piece arrives. Returns the answers if the sum is complete: the worker's number, and its answer.

        Raises:
            ProtocolError: the push contradicts the others of its sum.
        """
        sum_ = self._sums.setdefault(push.key, _Sum())
        if self._is_void(push, sum_):
            return []
        if push.generation > sum_.generation:
            sum_.parts.clear()
            sum_.generation, sum_.round = push.generation, push.round
        if not sum_.parts:
            sum_.round, sum_.contributions = push.round, push.contributions
        if (push.round, push.contributions) != (sum_.round, sum_.contributions) or sender in sum_.parts:
            raise ProtocolError(f"worker {sender} pushes {push}, and the sum is {sum_}")
        sum_.parts[sender] = push.value
        if len(sum_.parts) < sum_.contributions:
            return []
        answer = Answer(push.key, sum_.round, sum_.generation, frozenset(sum_.parts.values()))
        receivers = sorted(sum_.parts)
        sum_.parts.clear()
        sum_.round += 1
        return [(receiver, answer) for receiver in receivers]

    def fence(self, generation: int, round_number: int) -> None:
        """From this round on, only contributions of this generation and of later ones count."""
        self._fences = [older for older in self._fences if older[0] > generation or older[1] < round_number]
        self._fences.append((generation, round_number))
        for sum_ in self._sums.values():
            if sum_.generation < generation and sum_.round >= round_number:
                sum_.parts.clear()
                sum_.round = round_number

    def missing(self, workers: Collection[int]) -> frozenset[int]:
        """Workers that have not contributed to a sum that another worker has contributed to."""
        begun = [sum_.parts for sum_ in self._sums.values() if sum_.parts]
        return frozenset(worker for worker in workers if any(worker not in parts for parts in begun))

    def _is_void(self, push: Push, sum_: _Sum) -> bool:
        """Whether others have followed the push's generation, or its round."""
        if any(push.generation < generation and push.round >= first for generation, first in self._fences):
            return True
        return (push.generation, push.round) < (sum_.generation, sum_.round)
