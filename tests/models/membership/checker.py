"""Does the protocol of membership hold in any order of messages and faults? And does every rule of it matter?

    python -m tests.models.membership.checker --seeds 2000

Each seed is one job on a fake network: messages of different channels arrive in any order, and workers, servers and
the coordinator die, leave, come and are cut off at random moments. Then somebody dies at every point of a round, alone
and with every other point. Last, each rule is switched off, and the model must find a job that goes wrong.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dynamix_ps.membership.round_in_flight import ProtocolError
from dynamix_ps.membership.server import WrongPush
from tests.models.membership.faults import disturbances
from tests.models.membership.points import WITH_SERVERS, PointSet
from tests.models.membership.ring import RingWorker
from tests.models.membership.ring_entries import ENTERING
from tests.models.membership.ring_points import RING
from tests.models.membership.rules import RULES
from tests.models.membership.world import Job, Violation, World

WRONG = Violation, ProtocolError, WrongPush


@dataclass(frozen=True, slots=True)
class Case:
    """A job and its faults."""

    job: Job
    faults: Mapping[str, int]
    chance: float = 0.015  # of a fault before each action

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items())
        return f"{self.job.workers} workers, {self.job.servers} servers, prefetch {self.job.prefetch}: {faults}"

    def run(self, seed: int) -> Mapping[str, int]:
        """One job. Returns what happened; raises one of `WRONG`."""
        world = World(self.job, seed)
        world.run(disturbances(random.Random(f"faults {seed}"), self.faults, self.chance))
        return vars(world.counts)


CASES = tuple(
    Case(job, faults)
    for prefetch in (0, 1)
    for job, faults in (
        (Job(3, 1, prefetch=prefetch), {"kill worker": 1}),
        (Job(7, 2, prefetch=prefetch), {"kill worker": 4, "slow answers": 2}),
        (Job(4, 3, prefetch=prefetch), {"kill server": 2, "slow answers": 2}),
        (Job(4, 2, prefetch=prefetch), {"leave together": 1, "slow answers": 2}),
        (Job(5, 3, prefetch=prefetch), {"kill worker": 2, "kill server": 1, "restart": 2}),
        (Job(4, 2, prefetch=prefetch), {"leave": 2, "kill worker": 1, "kill server": 1, "slow answers": 2}),
        (Job(3, 2, rounds=10, prefetch=prefetch), {"join": 3, "kill worker": 2, "join server": 1, "slow offers": 2}),
        (Job(4, 2, prefetch=prefetch), {"partition": 2, "heal": 1, "reconnect": 3, "restart": 1, "join": 1}),
        (
            Job(5, 2, rounds=12, prefetch=prefetch),
            {"kill worker": 2, "kill server": 1, "leave": 2, "join": 2, "join server": 1, "restart": 2}
            | {"partition": 1, "heal": 1, "reconnect": 2, "slow answers": 2},
        ),
        (Job(4, 0, rounds=8, prefetch=prefetch, worker_class=RingWorker), {"kill worker": 3}),
        (
            Job(5, 0, rounds=10, prefetch=prefetch, worker_class=RingWorker),
            {"kill worker": 3, "restart": 2, "reconnect": 2, "partition": 1, "heal": 1},
        ),
        (
            Job(6, 0, rounds=10, prefetch=prefetch, worker_class=RingWorker),
            {"leave": 3, "kill worker": 2, "restart": 1, "reconnect": 1},
        ),
        (
            Job(3, 0, rounds=12, prefetch=prefetch, worker_class=RingWorker),
            {"join": 3, "kill worker": 2, "slow offers": 2},
        ),
        (
            Job(4, 0, rounds=12, prefetch=prefetch, worker_class=RingWorker),
            {"join": 3, "kill worker": 2, "leave": 2, "restart": 2, "reconnect": 2, "partition": 1, "heal": 1},
        ),
    )
)


@dataclass
class Tally:
    """Of many seeds."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)  # by seed


def tally(case: Case, seeds: range, stop: bool = False) -> Tally:
    """Run all seeds, or with `stop` those up to the first that goes wrong."""
    result = Tally()
    for seed in seeds:
        try:
            result.counts.update(case.run(seed))
        except WRONG as error:
            result.wrong[seed] = f"{type(error).__name__}: {error}"
            if stop:
                break
    return result


POINT_SETS = {"servers": WITH_SERVERS, "ring": RING, "entering a ring": ENTERING}


def tally_points(points_of: PointSet, seeds: range) -> Tally:
    """Every point and every pair, each with all these seeds. `wrong` is by number of the job."""
    result = Tally()
    jobs = [(points, seed) for points in points_of.all() for seed in seeds]
    for number, (points, seed) in enumerate(jobs):
        try:
            result.counts.update(points_of.run(points, seed))
        except WRONG as error:
            result.wrong[number] = f"{' and '.join(point.name for point in points)}, seed {seed}: {error}"
    result.counts["jobs"] = len(jobs)
    return result


def main() -> int:
    """Print all tables. Returns 1 if a job went wrong, or a rule did not matter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="jobs per case (default: %(default)s)")
    args = parser.parse_args()
    bad = False
    for case in CASES:
        result = tally(case, range(args.seeds))
        happened = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result.counts.items())
        print(f"{case}: {len(result.wrong)} of {args.seeds} wrong; {happened}", flush=True)
        for seed, error in list(result.wrong.items())[:3]:
            print(f"    seed {seed}: {error}")
        bad |= bool(result.wrong)
    for name, points_of in POINT_SETS.items():
        result = tally_points(points_of, range(max(4, args.seeds // 50)))
        happened = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in result.counts.items())
        print(f"{name}, every point, and every pair: {len(result.wrong)} wrong; {happened}", flush=True)
        for error in list(result.wrong.values())[:3]:
            print(f"    {error}")
        bad |= bool(result.wrong)
    for rule in RULES:
        off = tally(Case(rule.broken(), rule.faults, rule.chance), range(10 * args.seeds), stop=True)
        print(f"without {rule.name}: {next(iter(off.wrong.items()), 'nothing goes wrong')}", flush=True)
        bad |= not off.wrong
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
