"""Does the protocol of membership hold in any order of messages and faults?

    python -m tests.models.membership.checker [--seeds N] [--case NAME ...]

Each seed is one job on a fake network: messages of different channels arrive in any order, and workers, servers and
the coordinator die, leave, come and are cut off at random moments.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.models.membership.faults import disturbances
from tests.models.membership.job import Job
from tests.models.membership.world import World

_CHANCES = 0.01, 0.03  # of a fault before each action


@dataclass(frozen=True, slots=True)
class Case:
    """A job and its faults. They come seldom under even seeds; of every four seeds, two prefetch a batch."""

    name: str
    job: Job
    faults: Mapping[str, int]

    def __str__(self) -> str:
        return self.name

    def run(self, seed: int) -> Mapping[str, int]:
        """One job. Returns what happened; raises what went wrong."""
        world = World(replace(self.job, prefetch=seed // 2 % 2), seed)
        world.run(disturbances(random.Random(f"faults {seed}"), self.faults, _CHANCES[seed % len(_CHANCES)]))
        return vars(world.counts)


_CASES = (
    Case("one server", Job(3, 1), {"kill worker": 1}),
    Case("kills", Job(7, 2), {"kill worker": 4, "slow answers": 2}),
    Case("servers lost", Job(4, 3), {"kill server": 2, "slow answers": 2}),
    Case("leave together", Job(4, 2), {"leave together": 1, "slow answers": 2}),
    Case("restarts", Job(5, 3), {"kill worker": 2, "kill server": 1, "restart": 2}),
    Case("leaves", Job(4, 2), {"leave": 2, "kill worker": 1, "kill server": 1, "slow answers": 2}),
    Case("joins", Job(3, 2, rounds=12), {"join": 3, "kill worker": 2, "join server": 1, "slow offers": 2}),
    Case(
        "joins that all wait for",
        Job(3, 2, rounds=12, follows=False),
        {"join": 3, "kill worker": 2, "leave": 1, "slow offers": 2},
    ),
    Case(
        "servers come",
        Job(4, 3, pieces=(2, 2), rounds=14),
        {"kill server": 3, "join server": 4, "join": 1, "kill worker": 2, "slow answers": 2},
    ),
    Case(
        "come and go", Job(3, 2, rounds=12), {"join": 3, "leave": 3, "kill worker": 1, "reconnect": 4, "slow offers": 1}
    ),
    Case(
        "partitions",
        Job(4, 2),
        {"partition": 2, "heal": 2, "hide coordinator": 1, "reconnect": 3, "restart": 1, "join": 1},
    ),
    Case(
        "everything",
        Job(5, 2, rounds=14),
        {"kill worker": 2, "kill server": 1, "leave": 2, "join": 2, "join server": 1, "restart": 2}
        | {"partition": 1, "heal": 1, "reconnect": 2, "slow answers": 2, "pause": 1},
    ),
    Case(
        "too few",
        Job(4, 2, rounds=10, least=3),
        {"kill worker": 3, "join": 1, "leave": 1, "restart": 1, "reconnect": 3},
    ),
    Case("ring kills", Job(4, 0, rounds=8), {"kill worker": 3}),
    Case(
        "ring breaks", Job(4, 0, rounds=8), {"break ring": 3, "kill worker": 1, "leave": 1, "join": 1, "reconnect": 2}
    ),
    Case(
        "ring restarts",
        Job(5, 0, rounds=10),
        {"kill worker": 3, "restart": 2, "reconnect": 2, "partition": 1, "hide coordinator": 1, "heal": 2},
    ),
    Case("ring too few", Job(4, 0, rounds=10, least=3), {"kill worker": 3, "join": 1, "restart": 1, "pause": 2}),
    Case("ring leaves", Job(6, 0, rounds=10), {"leave": 3, "kill worker": 2, "restart": 1, "reconnect": 4}),
    Case("ring joins", Job(3, 0, rounds=12), {"join": 3, "kill worker": 1, "kill giver": 1, "slow offers": 2}),
    Case(
        "ring everything",
        Job(4, 0, rounds=12),
        {"join": 3, "kill worker": 2, "leave": 2, "restart": 2, "reconnect": 2, "partition": 1, "heal": 1, "pause": 1},
    ),
)
CASES = {case.name: case for case in _CASES}


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
        except Exception as error:
            result.wrong[seed] = f"{type(error).__name__}: {error}"
            if stop:
                break
    return result


def main() -> int:
    """Print all tables. Returns 1 if a job went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="jobs per case (default: %(default)s)")
    parser.add_argument("--case", nargs="*", choices=CASES, metavar="NAME", help="only these cases")
    args = parser.parse_args()
    bad = False
    for case in [CASES[name] for name in args.case or CASES]:
        result = tally(case, range(args.seeds))
        happened = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result.counts.items())
        print(f"{case}: {len(result.wrong)} of {args.seeds} wrong; {happened}", flush=True)
        for seed, error in list(result.wrong.items())[:3]:
            print(f"    seed {seed}: {error[:600]}")
        bad |= bool(result.wrong)
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
