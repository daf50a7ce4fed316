"""Which workers and servers enter a job that trains, and with which iteration. Pure.

The coordinator offers entries: processes with rising versions. A worker votes in the trailer for the newest version
that it holds; it holds all before it, too. Where all workers hold the same one, the sum decides on it: with the first
iteration that is not prepared yet, those offered take part. This follows from the sums, so it is the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dynamix_ps.membership.messages import Process


class Entries:
    """The entries of one training.

    Attributes:
        version: of the newest entry that was voted in.
    """

    def __init__(self) -> None:
        self.version = 0
        self._coming: dict[int, list[Process]] = {}  # by the iteration with which they enter

    def vote(self, held: Mapping[int, Process], may_enter: bool) -> int:
        """The version to vote for.

        Args:
            held: processes by version, as far as this worker has heard.
            may_enter: whether this training takes workers in now; the same on all workers. It always takes servers in.
        """
        new = [version for version in sorted(held) if version > self.version]
        taken = new if may_enter else list(itertools.takewhile(lambda version: held[version].role == "server", new))
        return max(taken, default=self.version)

    def decide(self, iteration: int, agreed: int | None, held: Mapping[int, Process]) -> list[Process]:
        """Who enters with `iteration`, the first one that is not prepared, by a sum with these votes."""
        if agreed is None or agreed <= self.version:
            return []
        voted = [held[version] for version in sorted(held) if self.version < version <= agreed]
        self.version = agreed
        entering = list({(one.role, one.slot): one for one in voted}.values())
        if entering:
            self._coming.setdefault(iteration, []).extend(entering)
        return entering

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters."""
        coming = [[first, [asdict(one) for one in those]] for first, those in self._coming.items()]
        return {"version": self.version, "coming": coming}

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self.version = packed["version"]
        self._coming = {first: [Process(**one) for one in those] for first, those in packed["coming"]}

    def awaited(self, iteration: int) -> set[int]:
        """Slots of the workers that enter after `iteration`."""
        coming = [one for first, those in self._coming.items() if first > iteration for one in those]
        return {one.slot for one in coming if one.role == "worker"}

    def due(self, iteration: int) -> list[Process]:
        """Who enters with `iteration`, or was to enter with an earlier one. Each is told once."""
        return [one for first in sorted(self._coming) if first <= iteration for one in self._coming.pop(first)]
