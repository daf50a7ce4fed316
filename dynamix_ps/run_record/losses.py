"""How the roles of a run came and went: who was lost, how fast that was found, who left or entered. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Lost: TypeAlias = tuple[str, int]  # worker or server, and which one


@dataclass(slots=True)
class RoleFailure:
    """Roles of one kind that were lost in one change of membership.

    Seconds and iterations are None while they are not known.
    """

    role: str  # worker or server
    numbers: list[int]  # of a worker: its rank
    reasons: list[str]
    left: int  # of this kind, that go on
    of: int  # most that there were
    found_s: float | None = (
        None  # from the end of the first of them, as the launcher saw it, until the coordinator knew
    )
    change_s: float | None = None  # from then until the others went on
    waited: bool = False  # meanwhile they were too few, and waited for another worker
    first_iteration: int | None = None  # that was finished without the lost workers
    short: list[int] = field(default_factory=list)  # iterations in which they were to be
    until: float = math.inf  # first iteration with others in their places

    def __str__(self) -> str:
        """In words.

        `3 of 4 workers from iteration 812: worker 2 lost, found after 0.11 s, one iteration finished without it`
        `1 of 2 servers: server 0 lost, found after 0.11 s, its sums moved after 0.05 s`
        """
        several = len(self.numbers) > 1
        begin = "" if self.first_iteration is None else f" from iteration {self.first_iteration:,}"
        parts = [f"{self.role}{'s' if several else ''} {', '.join(map(str, self.numbers))} lost"]
        if self.found_s is not None:  # 0: before the launcher, which looks a few times per second
            parts.append(f"found after {self.found_s:.2f} s" if self.found_s else "found at once")
        if self.waited:
            parts.append(f"the others waited {self.change_s:.2f} s for another one")
        if self.role == "worker":
            count = len(self.short)
            finished = "one iteration" if count == 1 else f"{count or 'no'} iterations"
            parts.append(f"{finished} finished without {'them' if several else 'it'}")
        elif self.change_s is not None:
            parts.append(f"{'their' if several else 'its'} sums moved after {self.change_s:.2f} s")
        return f"{self.left} of {self.of} {self.role}s{begin}: {', '.join(parts)}"


@dataclass(slots=True)
class RoleDeparture:
    """Workers that left on notice from one iteration on."""

    ranks: list[int]
    left: int  # workers that go on
    of: int  # most workers that there were
    first_iteration: int  # without them

    def __str__(self) -> str:
        """`3 of 4 workers from iteration 812: worker 2 left`."""
        names = f"worker{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{self.left} of {self.of} workers from iteration {self.first_iteration:,}: {names} left"


@dataclass(slots=True)
class RoleArrival:
    """Roles of one kind that entered with one iteration."""

    role: str  # worker or server
    numbers: list[int]  # of a worker: its rank
    there: int  # of this kind, with them
    of: int  # most that there were
    first_iteration: int

    def __str__(self) -> str:
        """`4 of 4 workers from iteration 912: worker 2 entered`."""
        names = f"{self.role}{'s' if len(self.numbers) > 1 else ''} {', '.join(map(str, self.numbers))}"
        return f"{self.there} of {self.of} {self.role}s from iteration {self.first_iteration:,}: {names} entered"


class MembershipHistory:
    """Built from the lines of launcher, arbitrator and workers, in the order in which they were written."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}  # by role, from the first members on: most that there were
        self._ended_s: dict[Lost, float] = {}  # Unix time
        self._known_s: dict[Lost, float] = {}
        self._reasons: dict[Lost, str] = {}
        self._short: dict[int, list[int]] = {}  # ranks by iteration
        self.found: list[RoleFailure] = []
        self.departures: list[RoleDeparture] = []
        self.arrivals: list[RoleArrival] = []
        self._back: set[int] = set()  # ranks whose departures are over: others have entered in their places
        self._counted: set[Lost] = set()  # whose loss is in `found`
        self.incarnations: set[tuple[Lost, str]] = set()  # ever lost
        self.too_few: str | None = None  # so many are left, and wait for others
        self.finishing = False  # too few are left, and end with a checkpoint
        self.schedulers: list[str] = []  # that were lost, each in words

    @property
    def founded(self) -> bool:
        """The members of the job have met."""
        return bool(self._of)

    def lost(self, role: str) -> frozenset[int]:
        """Workers or servers that are lost, and in whose places nobody has entered."""
        return frozenset(number for kind, number in self._known_s if kind == role)

    @property
    def left(self) -> frozenset[int]:
        """Ranks that have left on notice."""
        return frozenset(rank for one in self.departures for rank in one.ranks) - self._back

    def ended(self, lost: Lost, ended_s: float) -> None:
        """The process of a worker or a server ended at this Unix time, otherwise than in order."""
        self._ended_s[lost] = ended_s
        role, number = lost
        for loss in self.found:
            if loss.role == role and number in loss.numbers and loss.found_s is None and lost in self._known_s:
                loss.found_s = max(self._known_s[lost] - ended_s, 0.0)

    def scheduler(self, how: str, restart_in_s: float | None) -> None:
        """The scheduler has ended, as a crash is put in words, and is started again, or not."""
        then = "not started again" if restart_in_s is None else f"started again {restart_in_s:.1f} s later"
        self.schedulers.append(f"the scheduler {how}, {then}")

    def known(self, lost: Lost, known_s: float, reason: str, incarnation: str = "") -> None:
        """The coordinator has decided at this Unix time that a worker or a server is lost."""
        self.incarnations.add((lost, incarnation))
        self._known_s[lost], self._reasons[lost] = known_s, reason

    def changed(self, left: Mapping[str, int], change_s: float) -> None:
        """So many workers and servers, by role, go on, `change_s` after the change began."""
        self._of = self._of or {
            role: count + sum(lost[0] == role for lost in self._known_s) for role, count in left.items()
        }
        for role in left:
            new = sorted(lost for lost in self._known_s.keys() - self._counted if lost[0] == role)
            if not new:
                continue
            times_s = [self._known_s[lost] - self._ended_s[lost] for lost in new if lost in self._ended_s]
            found_s = max(min(times_s), 0.0) if times_s else None
            self._counted.update(new)
            numbers, reasons = [number for _, number in new], [self._reasons[lost] for lost in new]
            waited = role == "worker" and self.too_few is not None
            self.found.append(
                RoleFailure(role, numbers, reasons, left[role], self._of[role], found_s, change_s, waited)
            )
            self._note(self.found[-1])
        self.too_few = None

    def short(self, iteration: int, ranks: list[int]) -> None:
        """`iteration` was finished without these workers, which were to be in it."""
        self._short[iteration] = ranks
        for loss in self.found:
            self._note(loss)

    def entered(self, ranks: list[int], first_iteration: int, there: int) -> None:
        """From this iteration on there are these workers, in empty places or those of others that are gone."""
        self._of["worker"] = max(self._of.get("worker", there), there)
        self.arrivals.append(RoleArrival("worker", ranks, there, self._of["worker"], first_iteration))
        self._take_place("worker", ranks)
        self._back.update(ranks)
        for loss in self._of_workers():
            if set(ranks) & set(loss.numbers):
                loss.until = min(loss.until, first_iteration)
                self._note(loss)

    def servers_entered(self, numbers: list[int], first_iteration: int) -> None:
        """From this iteration on these servers sum, in the places of others that were lost."""
        self._take_place("server", numbers)
        of = self._of.get("server", len(numbers))
        self.arrivals.append(RoleArrival("server", numbers, of - len(self.lost("server")), of, first_iteration))

    def _take_place(self, role: str, numbers: list[int]) -> None:
        places = [(role, number) for number in numbers]
        for table in (self._known_s, self._ended_s):
            for place in places:
                table.pop(place, None)
        self._counted.difference_update(places)

    def departed(self, rank: int, first_iteration: int, left: int) -> None:
        """From this iteration on `left` workers go on without a worker that leaves on notice."""
        self._back.discard(rank)
        for one in self.departures:
            if one.first_iteration == first_iteration:
                one.ranks = sorted({*one.ranks, rank})
                return
        self.departures.append(RoleDeparture([rank], left, self._of.get("worker", left + 1), first_iteration))

    def _note(self, loss: RoleFailure) -> None:
        """The iterations that are known so far; a worker's line may be read before the arbitrator's."""
        if loss.role != "worker":
            return
        others = [one for one in self._of_workers() if one is not loss and set(one.numbers) & set(loss.numbers)]
        begin = max((one.until for one in others if one.until < loss.until), default=0)
        loss.short = sorted(
            iteration
            for iteration, ranks in self._short.items()
            if begin <= iteration < loss.until and set(ranks) & set(loss.numbers)
        )
        loss.first_iteration = loss.short[0] if loss.short else None

    def _of_workers(self) -> list[RoleFailure]:
        return [loss for loss in self.found if loss.role == "worker"]
