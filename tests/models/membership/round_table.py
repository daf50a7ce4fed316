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
    contributions: int = 0
    parts: dict[int, Value] = field(default_factory=dict)  # by sender


class RoundTable:
    """The sums of one server. Senders are workers' numbers."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}
        self._generation = 0

    def push(self, sender: int, push: Push) -> list[tuple[int, Answer]]:
        """A piece arrives. Returns the answers if the sum is complete: the worker's number, and its answer.

        Raises:
            ProtocolError: the push contradicts the others of its sum.
        """
        if push.generation < self._generation:
            return []
        if push.generation > self._generation:
            self._follow(push)
        sum_ = self._sums.setdefault(push.key, _Sum())
        if not sum_.parts and push.round >= sum_.round:
            sum_.round, sum_.contributions = push.round, push.contributions
        if (push.round, push.contributions) != (sum_.round, sum_.contributions) or sender in sum_.parts:
            raise ProtocolError(f"worker {sender} pushes {push}, and the sum is {sum_}")
        sum_.parts[sender] = push.value
        if len(sum_.parts) < sum_.contributions:
            return []
        answer = Answer(push.key, sum_.round, self._generation, frozenset(sum_.parts.values()))
        receivers = sorted(sum_.parts)
        sum_.parts.clear()
        sum_.round += 1
        return [(receiver, answer) for receiver in receivers]

    def _follow(self, push: Push) -> None:
        """The first push of a newer generation: what is there of older ones is made anew, from its round on."""
        self._generation = push.generation
        for sum_ in self._sums.values():
            sum_.parts.clear()
            sum_.round = min(sum_.round, push.round)

    def missing(self, workers: Collection[int]) -> frozenset[int]:
        """Workers that have not contributed to a sum that another worker has contributed to."""
        begun = [sum_.parts for sum_ in self._sums.values() if sum_.parts]
        return frozenset(worker for worker in workers if any(worker not in parts for parts in begun))
