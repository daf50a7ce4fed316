"""How the workers of a run came and went: lost ones, how fast that was found, those that left, who entered. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class Loss:
    """Workers that were lost in one change of membership. Seconds and iterations are None while they are not known."""

    ranks: list[int]
    reasons: list[str]
    left: int  # workers that go on
    of: int  # workers that the job began with
    found_s: float | None = (
        None  # from the end of the first of them, as the launcher saw it, until the coordinator knew
    )
    change_s: float | None = None  # from then until the others went on
    first_iteration: int | None = None  # that was finished without them
    short: list[int] = field(default_factory=list)  # iterations in which they were to be
    until: float = math.inf  # first iteration with others in their places

    def __str__(self) -> str:
        """`3 of 4 workers from iteration 812: worker 2 lost, found after 0.11 s, one iteration finished without it`."""
        several = len(self.ranks) > 1
        names = f"worker{'s' if several else ''} {', '.join(map(str, self.ranks))}"
        begin = "" if self.first_iteration is None else f" from iteration {self.first_iteration:,}"
        found = ""
        if self.found_s is not None:  # 0: before the launcher, which looks a few times per second
            found = f", found after {self.found_s:.2f} s" if self.found_s else ", found at once"
        number = len(self.short)
        finished = "one iteration" if number == 1 else f"{number or 'no'} iterations"
        without = "them" if several else "it"
        return f"{self.left} of {self.of} workers{begin}: {names} lost{found}, {finished} finished without {without}"


@dataclass(slots=True)
class Departure:
    """Workers that left on notice from one iteration on."""

    ranks: list[int]
    left: int  # workers that go on
    of: int  # workers that the job began with
    first_iteration: int  # without them

    def __str__(self) -> str:
        """`3 of 4 workers from iteration 812: worker 2 left`."""
        names = f"worker{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{self.left} of {self.of} workers from iteration {self.first_iteration:,}: {names} left"


@dataclass(slots=True)
class Arrival:
    """Workers that entered with one iteration, in the places of others."""

    ranks: list[int]
    there: int  # workers, with them
    of: int  # workers that the job began with
    first_iteration: int

    def __str__(self) -> str:
        """`4 of 4 workers from iteration 912: worker 2 entered`."""
        names = f"worker{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{self.there} of {self.of} workers from iteration {self.first_iteration:,}: {names} entered"


class Losses:
    """Built from the lines of launcher, arbitrator and workers, in the order in which they were written."""

    def __init__(self, workers: int) -> None:
        self._of = workers
        self._ended_s: dict[int, float] = {}  # Unix time, by rank
        self._known_s: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        self._short: dict[int, list[int]] = {}  # ranks by iteration
        self.found: list[Loss] = []
        self.departures: list[Departure] = []
        self.arrivals: list[Arrival] = []
        self._back: set[int] = set()  # ranks whose departures are over: others have entered in their places
        self._counted: set[int] = set()  # ranks whose loss is in `found`
        self.founded = False  # the members of the job have met

    @property
    def lost(self) -> frozenset[int]:
        """Ranks that are lost, and in whose places nobody has entered."""
        return frozenset(self._known_s)

    @property
    def left(self) -> frozenset[int]:
        """Ranks that have left on notice."""
        return frozenset(rank for one in self.departures for rank in one.ranks) - self._back

    def ended(self, rank: int, ended_s: float) -> None:
        """The process of a worker ended at this Unix time, otherwise than in order."""
        self._ended_s[rank] = ended_s
        for loss in self.found:
            if rank in loss.ranks and loss.found_s is None and rank in self._known_s:
                loss.found_s = max(self._known_s[rank] - ended_s, 0.0)

    def known(self, rank: int, known_s: float, reason: str) -> None:
        """The coordinator has decided at this Unix time that a worker is lost."""
        self._known_s[rank], self._reasons[rank] = known_s, reason

    def changed(self, left: int, change_s: float) -> None:
        """So many workers go on, `change_s` after the change began."""
        self.founded = True
        ranks = sorted(self._known_s.keys() - self._counted)
        if not ranks:
            return
        times_s = [self._known_s[rank] - self._ended_s[rank] for rank in ranks if rank in self._ended_s]
        found_s = max(min(times_s), 0.0) if times_s else None
        self._counted.update(ranks)
        reasons = [self._reasons[rank] for rank in ranks]
        self.found.append(Loss(ranks, reasons, left, self._of, found_s, change_s))
        self._note(self.found[-1])

    def short(self, iteration: int, ranks: list[int]) -> None:
        """`iteration` was finished without these workers, which were to be in it."""
        self._short[iteration] = ranks
        for loss in self.found:
            self._note(loss)

    def entered(self, ranks: list[int], first_iteration: int, there: int) -> None:
        """From this iteration on there are these workers, in the places of others that were lost or have left."""
        self.arrivals.append(Arrival(ranks, there, self._of, first_iteration))
        for table in (self._known_s, self._ended_s):
            for rank in ranks:
                table.pop(rank, None)
        self._counted.difference_update(ranks)
        self._back.update(ranks)
        for loss in self.found:
            if set(ranks) & set(loss.ranks):
                loss.until = min(loss.until, first_iteration)
                self._note(loss)

    def departed(self, rank: int, first_iteration: int, left: int) -> None:
        """From this iteration on `left` workers go on without a worker that leaves on notice."""
        self._back.discard(rank)
        for one in self.departures:
            if one.first_iteration == first_iteration:
                one.ranks = sorted({*one.ranks, rank})
                return
        self.departures.append(Departure([rank], left, self._of, first_iteration))

    def _note(self, loss: Loss) -> None:
        """The iterations that are known so far; a worker's line may be read before the arbitrator's."""
        earlier = [one.until for one in self.found if one is not loss and set(one.ranks) & set(loss.ranks)]
        begin = max((until for until in earlier if until < loss.until), default=0)
        loss.short = sorted(
            iteration
            for iteration, ranks in self._short.items()
            if begin <= iteration < loss.until and set(ranks) & set(loss.ranks)
        )
        loss.first_iteration = loss.short[0] if loss.short else None
