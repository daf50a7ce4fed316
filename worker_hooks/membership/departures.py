"""Who leaves the job on notice, and with which sum. Pure.

A worker that is to leave votes so in the trailer of its next sum. The sum decides on the first iteration that is not
prepared yet: from this one on the worker has no samples. It takes part in one more sum with nothing: so the others wait
for it until it has the sum before, and it stays until they have that one. Then it is gone, and nothing was repeated.

Votes count only while enough workers stay: all votes of a sum, or none of them. All of this follows from the sums, so
it is the same on all workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from worker_hooks.exchange.agreement import name_workers


class Departures:
    """The votes of one training.

    Args:
        least: workers that stay at least.

    Attributes:
        refusal: why the votes of the newest sum do not count; empty: there were none, or they do.
    """

    def __init__(self, least: int) -> None:
        self._least = max(least, 1)
        self._empty_from: dict[int, int] = {}  # first iteration without samples, by slot, of those that leave
        self.refusal = ""

    def decide(self, empty_from: int, present: Collection[int], votes: Collection[int]) -> list[int]:
        """The workers that leave by the votes of a sum, and did not by earlier ones.

        Args:
            empty_from: the first iteration that is not prepared yet.
            present: slots of the workers in the sum.
            votes: those of them that vote to leave.
        """
        self.refusal = ""
        new = [slot for slot in votes if slot not in self._empty_from]
        stay = len(self.staying(present)) - len(new)
        if new and stay < self._least:
            self.refusal = (
                f"{name_workers(new)} cannot leave: {stay} of {len(present)} workers would stay, and "
                f"elastic.min_workers is {self._least}"
            )
            return []
        self._empty_from |= dict.fromkeys(new, empty_from)
        return new

    def packed(self) -> list[list[int]]:
        """In JSON's types, for a worker that enters."""
        return [list(one) for one in self._empty_from.items()]

    def take_over(self, packed: Iterable[Sequence[int]]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._empty_from = {slot: first for slot, first in packed}

    def forget(self, slots: Collection[int]) -> None:
        """Other workers enter in their places."""
        for slot in slots:
            self._empty_from.pop(slot, None)

    def staying(self, present: Collection[int]) -> list[int]:
        """Those of the workers in a sum that do not leave."""
        return [slot for slot in present if slot not in self._empty_from]

    def gone_after(self, first: int, present: Collection[int]) -> list[int]:
        """The workers of which this sum, of batches from iteration `first` on, was the last one."""
        return [slot for slot in present if self._empty_from.get(slot, first + 1) <= first]
