"""One training of the spot study, by either contender: from its first iteration to the target, with what it cost.

Machines go and come back by the schedule of the seed, whatever the contender does.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.studies.membership.spot_launch import Launch, Point
from benchmarks.studies.membership.spot_schedule import MACHINES, Change, schedule
from dynamix_ps.run_record.evaluations import TargetReached, first_reached
from dynamix_ps.run_record.requests import JOIN, request

LOOK_S = 0.05
ASK_AGAIN_S = 1.0
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to. Times count from when all machines had begun to train.

    Attributes:
        target_s: when the accuracy was first as good as the target.
        samples: of all workers by then, without those that came again.
        notices, kills, backs: machines that went and came by then.
        starts: again, of the whole job.
        restarting_s: from what ended a job until all workers of the next one trained, in all.
        repeated: iterations that were made again, after the checkpoints.
    """

    target_s: float
    samples: float
    notices: int
    kills: int
    backs: int
    starts: int = 0
    restarting_s: float = 0.0
    repeated: int = 0


class Contender(ABC):
    """A user's way to train on machines that go and come back.

    Args:
        folder: for everything that is written; it exists.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self.there = set(range(MACHINES))
        self.launches: list[Launch] = []

    def launch(self, resume: Path | None = None) -> None:
        """On all machines that are there."""
        folder, machines = self._folder / str(len(self.launches)), tuple(sorted(self.there))
        self.launches.append(Launch(folder, self._seed, machines, self.least, resume))

    @property
    def newest(self) -> Launch:
        return self.launches[-1]

    least: int | None = None  # workers with which its job is elastic

    def change(self, change: Change) -> None:
        """A machine goes or is back."""
        if change.kind == "back":
            self.there.add(change.machine)
            self.back(change.machine)
        else:
            self.there.discard(change.machine)
            self.goes(change.machine, notice=change.kind == "notice")

    @abstractmethod
    def goes(self, machine: int, notice: bool) -> None:
        """With notice, or without a word."""

    @abstractmethod
    def back(self, machine: int) -> None:
        """It may be used again."""

    @abstractmethod
    def tick(self) -> None:
        """Called often."""

    def priced(self, outcome: Outcome) -> Outcome:
        """With what starts again have cost."""
        return outcome


class Staying(Contender):
    """Membership: the others go on, and a machine that is back enters by `dynamix join`."""

    least = 1  # one that is back may not have entered yet when the next one goes

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._coming: set[int] = set()
        self._asked_s = 0.0

    def goes(self, machine: int, notice: bool) -> None:
        self._coming.discard(machine)
        self.newest.strike(machine, signal.SIGTERM if notice else signal.SIGKILL)

    def back(self, machine: int) -> None:
        self._coming.add(machine)
        self._asked_s = 0.0

    def tick(self) -> None:
        """Ask again until they have entered, as `dynamix join` does."""
        if self.newest.over:
            raise SystemExit(f"spot: the elastic job has ended:\n{self.newest.output}")
        self._coming -= self.newest.entered
        run, now_s = self.newest.run, time.monotonic()
        if self._coming and run is not None and now_s >= self._asked_s + ASK_AGAIN_S:
            self._asked_s = now_s
            for machine in self._coming:
                request(run, JOIN, machine)


class Restarting(Contender):
    """Checkpoints: each machine that goes ends the job, and the next one begins at once with those that are there.

    With notice it ends in order, with a checkpoint, unless it is still starting. A machine that is back takes part from
    the next start on: to end the job for it would cost more than it brings where machines go that often.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._checkpoint: Path | None = None
        self._struck: Launch | None = None  # the newest one that a machine has ended
        self._struck_s: float | None = None  # Unix time since which nobody trains
        self._reached = 0  # the last iteration of it
        self._restarting_s, self._repeated = 0.0, 0

    def goes(self, machine: int, notice: bool) -> None:
        if machine not in self.newest.machines or self.newest.over:
            return
        self._struck, self._struck_s = self.newest, self._struck_s or time.time()
        in_order = notice and self.newest.began_s is not None
        if in_order or not self.newest.strike(machine, signal.SIGKILL):
            self.newest.end()

    def back(self, machine: int) -> None:
        pass

    def tick(self) -> None:
        if self._struck_s is not None and self.newest.began_s is not None and self.newest is not self._struck:
            self._restarting_s += self.newest.began_s - self._struck_s
            self._repeated += max(0, self._reached - self.newest.iteration)
            self._struck_s, self._reached = None, 0
        if self.newest.over:
            if self.newest is not self._struck:
                raise SystemExit(f"spot: the job has ended by itself:\n{self.newest.output}")
            self._reached = max(self._reached, self.newest.reached)
            self._checkpoint = self.newest.checkpoint or self._checkpoint
            self.launch(self._checkpoint)

    def priced(self, outcome: Outcome) -> Outcome:
        starts = len(self.launches) - 1
        return replace(outcome, starts=starts, restarting_s=self._restarting_s, repeated=self._repeated)


CONTENDERS: dict[str, type[Contender]] = {"membership": Staying, "restarts": Restarting}


def run_job(name: str, seed: int, target: float, folder: Path) -> Outcome:
    """Train until the target is reached, in `folder`, which exists. Raises SystemExit if that does not work."""
    contender = CONTENDERS[name](folder, seed)
    changes, made = list(schedule(seed)), Counter[str]()
    deadline_s = time.monotonic() + LIMIT_S
    try:
        contender.launch()
        first = contender.newest
        while True:
            contender.newest.look()
            began_s = first.began_s
            if began_s is not None and (reached := reached_in([one.points for one in contender.launches], target)):
                counts = (made[kind] for kind in ("notice", "kill", "back"))
                return contender.priced(Outcome(reached.time_s - began_s, reached.samples, *counts))
            while began_s is not None and time.time() - began_s >= changes[0].at_s:
                made[changes[0].kind] += 1
                contender.change(changes.pop(0))
            contender.tick()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"spot: {name} {seed} did not reach {target:g} within {LIMIT_S:g} s")
            time.sleep(LOOK_S)
    finally:
        for launch in contender.launches:
            launch.close()


def reached_in(launches: Sequence[Sequence[Point]], target: float) -> TargetReached | None:
    """Where the accuracy was first as good as the target; None also if no evaluation has come after that."""
    points = curve_of(launches)
    reached = first_reached(points, target, higher_is_better=True)
    return reached if reached is not None and any(reached.time_s <= one.at_s for one in points[:-1]) else None


def curve_of(launches: Sequence[Sequence[Point]]) -> list[Point]:
    """The evaluations of one training, which may have begun again: those whose samples come again do not count."""
    kept: list[Point] = []
    for points in launches:
        kept = [one for one in kept if not points or one.samples < points[0].samples] + list(points)
    return kept
