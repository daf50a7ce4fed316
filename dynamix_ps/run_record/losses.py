"""Workers that a run went on without: lost ones, how fast that was found, and those that left on notice. Pure."""

from __future__ import annotations

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
        self.founded = False  # the members of the job have met

    @property
    def lost(self) -> frozenset[int]:
        """Ranks that do not come back."""
        return frozenset(self._known_s)

    @property
    def left(self) -> frozenset[int]:
        """Ranks that have left on notice."""
        return frozenset(rank for one in self.departures for rank in one.ranks)

    def ended(self, rank: int, ended_s: float) -> None:
        """The process of a worker ended at this Unix time, otherwise than in order."""
        self._ended_s[rank] = ended_s
        for loss in self.found:
            if rank in loss.ranks and loss.found_s is None:
                loss.found_s = max(self._known_s[rank] - ended_s, 0.0)

    def known(self, rank: int, known_s: float, reason: str) -> None:
        """The coordinator has decided at this Unix time that a worker is lost."""
        self._known_s[rank], self._reasons[rank] = known_s, reason

    def changed(self, left: int, change_s: float) -> None:
        """So many workers go on, `change_s` after the change began."""
        self.founded = True
        counted = {rank for loss in self.found for rank in loss.ranks}
        ranks = sorted(self._known_s.keys() - counted)
        if not ranks:
            return
        times_s = [self._known_s[rank] - self._ended_s[rank] for rank in ranks if rank in self._ended_s]
        found_s = max(min(times_s), 0.0) if times_s else None
        reasons = [self._reasons[rank] for rank in ranks]
        self.found.append(Loss(ranks, reasons, left, self._of, found_s, change_s))
        self._note(self.found[-1])

    def short(self, iteration: int, ranks: list[int]) -> None:
        """`iteration` was finished without these workers, which were to be in it."""
        self._short[iteration] = ranks
        for loss in self.found:
            self._note(loss)

    def departed(self, rank: int, first_iteration: int, left: int) -> None:
        """From this iteration on `left` workers go on without a worker that leaves on notice."""
        for one in self.departures:
            if one.first_iteration == first_iteration:
                one.ranks = sorted({*one.ranks, rank})
                return
        self.departures.append(Departure([rank], left, self._of, first_iteration))

    def _note(self, loss: Loss) -> None:
        """The iterations that are known so far; a worker's line may be read before the arbitrator's."""
        loss.short = sorted(iteration for iteration, ranks in self._short.items() if set(ranks) & set(loss.ranks))
        loss.first_iteration = loss.short[0] if loss.short else None
