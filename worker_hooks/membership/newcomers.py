"""Newcomers between their offer and their first sum: whom they follow, and who gives them the state. Pure.

The leader gives a newcomer a copy of the state, and then every sum. Whom a newcomer follows holds the vote for it back
until it has caught up, or never will. The others do not: so the leader decides, and another leader after it goes on
with those that follow nobody. Who is voted in and follows nobody gets the state while all wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from dynamix_ps.membership.messages import Process


class Giver(Protocol):
    """What gives one newcomer the sums."""

    @property
    def is_ready(self) -> bool:
        """Whether the newcomer may enter: it has caught up, or never will."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the newcomer is gone."""
        ...


G = TypeVar("G", bound=Giver)


class Newcomers(Generic[G]):
    """Those of one training.

    Attributes:
        here: those that follow this worker.
        elsewhere: those that follow another one.
    """

    def __init__(self) -> None:
        self.here: dict[Process, G] = {}
        self.elsewhere: set[Process] = set()

    @property
    def followed(self) -> list[Process]:
        """All that follow a worker."""
        return [*self.here, *self.elsewhere]

    def may_be_voted_in(self, offered: Mapping[int, Process], version: int, leads: bool) -> dict[int, Process]:
        """Of those offered, by version, the ones up to the first whose vote this worker holds back.

        Args:
            version: of the newest entry that was voted in.
            leads: this worker does.
        """
        newest = sorted(offered.items())
        return dict(itertools.takewhile(lambda item: item[0] <= version or self._is_ready(item[1], leads), newest))

    def _is_ready(self, process: Process, leads: bool) -> bool:
        if process.role != "worker":
            return True
        if giver := self.here.get(process):
            return giver.is_ready
        return not leads or process in self.elsewhere

    def unfollowing(self, offered: Mapping[int, Process], version: int) -> list[Process]:
        """Those offered after `version` that follow nobody yet."""
        new = [one for number, one in sorted(offered.items()) if number > version and one.role == "worker"]
        return [one for one in new if one not in self.here and one not in self.elsewhere]

    def enter(self, workers: Collection[Process], leads: bool) -> dict[Process, G | None]:
        """These workers are in the coming sum. Returns those that get from this worker what they lack."""
        mine = [one for one in workers if one in self.here or (leads and one not in self.elsewhere)]
        self.elsewhere.difference_update(workers)
        return {one: self.here.pop(one, None) for one in mine}

    def take_over(self, followed: Iterable[Process]) -> None:
        """This worker enters, and these follow others."""
        self.elsewhere = set(followed)
