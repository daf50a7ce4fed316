"""Sums that only note what they are told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dynamix_ps.membership.sums import SumProgress


class NotedSums:
    """Of a worker. `at`: its first incomplete round. `lacks`: servers that owe it an answer."""

    def __init__(self, at: int = 5) -> None:
        self.at, self.lacks = at, frozenset[int]()
        self.told: list[Any] = []  # name of each call that changes something, and its arguments

    def status(self) -> SumProgress:
        return SumProgress(self.at)

    def freeze(self) -> SumProgress:
        self.told.append("freeze")
        return SumProgress(self.at)

    def unanswered(self) -> frozenset[int]:
        return self.lacks

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        self.told.append(("meet", sorted(addresses), *([sorted(leaving)] if leaving else [])))

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        self.told.append(("resume", generation, round_number, contributions, sorted(lost_servers)))

    def expect(self, contributions: int) -> None:
        self.told.append(("expect", contributions))

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        self.told.append(("enter", generation, round_number, contributions, sorted(lost_servers)))
        return round_number + 1

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        self.told.append(("use_servers_without", sorted(lost_servers)))
