"""A worker of `data_plane_race`: makes sums of changing values and checks every one of them exactly.

All workers push the same names in the same order, which the seed gives. A worker waits for older sums only when it
pushes a name again or has too many values on their way, where the limit is random; so workers run ahead of each other.
Values are integers that float32 holds exactly, other ones at every position and in every round. A name has two buffers,
used in a random order: both ordinary, both allocated by the data plane, or one of each. In some sums every worker gives
only the values from a position of its own on.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

NAMES, LARGE_NAMES = 40, 8
MOST_VALUES = 400_000  # of a small name
LARGE_VALUES = (1_000_000, 4_000_000)
_BURST = 0.001  # probability that all large names come next, twice: more bytes than sockets hold
_PERIOD = 1009  # of the values within a buffer; no divisor of any usual size of a piece
_PARTIAL = 0.1  # probability that workers begin at positions of their own
_FACTORS = 997  # the values change by a multiple of this many
_CHANGE = 0.02  # probability that a worker changes how many values it has on their way before it waits
PATIENCE_S = 100.0
UNTOUCHED = -7.0  # where a worker gives nothing and gets nothing
REPORT_EVERY = 500  # sums between two lines of progress


@dataclass(slots=True)
class Sum:
    """One sum on its way."""

    number: int
    name: int
    buffer: Any
    handle: int
    factor: int
    begins: list[int]


@dataclass(slots=True)
class Checked:
    """What a worker found. `examples` describes the first wrong sums."""

    checked: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)


def sizes(seed: int) -> list[int]:
    """Number of values of every name: small ones, then large ones."""
    rng = random.Random(f"sizes/{seed}")
    small = [1, 2, *(round(MOST_VALUES ** rng.random()) for _ in range(NAMES - 2))]
    return small + [rng.randint(*LARGE_VALUES) for _ in range(LARGE_NAMES)]


def sequence(seed: int, sums: int) -> Iterator[int]:
    """The name of every sum; all large ones come first, twice, and then now and then."""
    rng = random.Random(f"sequence/{seed}")
    waiting = deque(2 * list(range(NAMES, NAMES + LARGE_NAMES)))
    for _ in range(sums):
        if not waiting:
            waiting.extend(rng.sample(range(NAMES), NAMES))
        yield waiting.popleft()
        if rng.random() < _BURST:
            waiting.extend(2 * list(range(NAMES, NAMES + LARGE_NAMES)))


def main(seed: int, sums: int) -> None:
    """Prints `N sums, M wrong` as it goes, and at last a JSON document."""
    import torch

    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    found = check_sums(comm, seed, sums)
    comm.shutdown()
    print(json.dumps(asdict(found)), flush=True)


def check_sums(comm: Any, seed: int, sums: int) -> Checked:
    """Make and check `sums` sums."""
    import torch

    lengths = sizes(seed)
    for name in range(len(lengths)):
        comm.declare(f"race.{name}")
    buffers = [two_buffers(comm, name, length) for name, length in enumerate(lengths)]
    pattern = torch.arange(max(lengths)).remainder_(_PERIOD).float()
    expected = torch.empty(max(lengths))
    own, common = random.Random(f"{seed}/{comm.rank}"), random.Random(f"common/{seed}")
    rank_sum = comm.size * (comm.size + 1) // 2
    under_way: deque[Sum] = deque()
    found = Checked()

    def give(one: Sum, rank: int, out: Any) -> None:
        """Add what worker `rank` gives to `out`."""
        begin = one.begins[rank]
        out[begin:].add_(pattern[begin : len(out)]).add_(one.factor * (rank + 1))

    def finish() -> None:
        oldest = under_way.popleft()
        assert comm.wait(oldest.handle, PATIENCE_S), f"sum {oldest.number}, {lengths[oldest.name]} values: not there"
        want = expected[: lengths[oldest.name]]
        if any(oldest.begins):
            want.zero_()
            for rank in range(comm.size):
                give(oldest, rank, want)
            want[: oldest.begins[comm.rank]] = UNTOUCHED
        else:
            torch.mul(pattern[: len(want)], comm.size, out=want).add_(oldest.factor * rank_sum)
        found.checked += 1
        if not torch.equal(oldest.buffer, want):
            found.wrong += 1
            found.examples = [*found.examples, describe(oldest, want)][:5]
        if found.checked % REPORT_EVERY == 0:
            print(f"{found.checked} sums, {found.wrong} wrong", flush=True)

    ahead = math.inf
    for number, name in enumerate(sequence(seed, sums)):
        if own.random() < _CHANGE:
            ahead = own.choice([0, 10 ** own.uniform(1, 7), math.inf])
        while under_way and (
            any(one.name == name for one in under_way) or sum(lengths[one.name] for one in under_way) > ahead
        ):
            finish()
        begins = [0] * comm.size
        if common.random() < _PARTIAL:
            begins = [common.randint(0, lengths[name]) for _ in begins]
        next_one = Sum(number, name, common.choice(buffers[name]), 0, number * 31 % _FACTORS, begins)
        next_one.buffer.zero_()[: begins[comm.rank]] = UNTOUCHED
        give(next_one, comm.rank, next_one.buffer)
        next_one.handle = comm.push_pull(f"race.{name}", next_one.buffer, begins[comm.rank])
        under_way.append(next_one)
        if number == 0:
            print("running", flush=True)
    while under_way:
        finish()
    return found


def two_buffers(comm: Any, name: int, length: int) -> list[Any]:
    """Both ordinary, both allocated, or one of each."""
    import torch

    allocated = [torch.from_numpy(comm.allocate(length, "float32")) for _ in range(name % 3)]
    return allocated + [torch.zeros(length) for _ in range(2 - len(allocated))]


def describe(wrong: Sum, want: Any) -> str:
    """Which sum, and where it is wrong."""
    buffer = wrong.buffer
    places = (buffer != want).nonzero().flatten()
    first, last = int(places[0]), int(places[-1])
    return (
        f"sum {wrong.number}, name {wrong.name}, begins {wrong.begins}: "
        f"{len(places)} of {len(want)} values wrong, from {first} to {last}; "
        f"the first is {float(buffer[first]):.0f}, expected {float(want[first]):.0f}"
    )
