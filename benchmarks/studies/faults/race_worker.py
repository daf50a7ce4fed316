"""A worker of `data_plane_race`: makes sums of changing values and checks every one of them exactly.

All workers push the same names in the same order, which the seed gives. A worker waits for older sums only when it
pushes a name again or has too many values on their way, where the limit is random; so workers run ahead of each other.
Values are integers that float32 holds exactly, other ones at every position and in every round. A name has a priority
and two buffers, used in a random order: both ordinary, both allocated by the data plane, or one of each. In some sums
every worker gives only the values from a position of its own on.

With fewer bytes on the wire values are from -5 to 5. What rounding leaves out of a sum of four workers is then below
0.35, so the nearest integers are the sum. At the end of a buffer may be values that travel as they are.
"""

from __future__ import annotations

import json
import math
import os
import random
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dynamix_ps.config import variables

WITHOUT_PARITY = "BYTEPS_SERVER_PARITY"  # 0: servers have the fault that a race is to find
NAMES, LARGE_NAMES = 40, 8
MOST_VALUES = 400_000  # of a small name
LARGE_VALUES = (1_000_000, 4_000_000)
_BURST = 0.001  # probability that all large names come next, twice: more bytes than sockets hold
_PERIOD = 1009  # of the values within a buffer; no divisor of any usual size of a piece
_PARTIAL = 0.1  # probability that workers begin at positions of their own
_FACTORS = 997  # the values change by a multiple of this many
_SMALL = 5  # the largest magnitude of values that travel in fewer bytes
_PRIORITIES = 8
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
    """What a worker found. `examples` describes the first wrong sums. `digest` is of all sums."""

    checked: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)
    digest: int = 0


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


def main(plane: str, seed: int, sums: int) -> None:
    """Prints `N sums, M wrong` as it goes, and at last a JSON document."""
    import torch

    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm: Any = open_comm(plane)
    comm.init()
    if os.environ.get(WITHOUT_PARITY) == "0":
        comm._exchange.limit_in_flight(1 << 40)  # the fault shows only where sockets are full
    found = check_sums(comm, seed, sums)
    comm.shutdown()
    print(json.dumps(asdict(found)), flush=True)


class Values:
    """What workers give in a sum."""

    def __init__(self, workers: int, most: int, small: bool) -> None:
        """`small`: from -_SMALL to _SMALL."""
        import torch

        self._workers, self._small = workers, small
        pattern = torch.arange(most).remainder_(_PERIOD)
        self._pattern = pattern.remainder_(2 * _SMALL + 1) if small else pattern.float()

    def give(self, one: Sum, rank: int, out: Any) -> None:
        """Add what worker `rank` gives to `out`."""
        import torch

        begin, change = one.begins[rank], one.factor * (rank + 1)
        given = self._pattern[begin : len(out)]
        if self._small:
            table = torch.arange(2 * _SMALL + 1).add_(change).remainder_(2 * _SMALL + 1).sub_(_SMALL)
            out[begin:].add_(table.float()[given])
        else:
            out[begin:].add_(given).add_(change)

    def sum(self, one: Sum, out: Any) -> Any:
        """`out` with what all workers give."""
        out.zero_()
        for rank in range(self._workers):
            self.give(one, rank, out)
        return out


def check_sums(comm: Any, seed: int, sums: int) -> Checked:
    """Make and check `sums` sums."""
    import torch

    lengths = sizes(seed)
    own, common = random.Random(f"{seed}/{comm.rank}"), random.Random(f"common/{seed}")
    may_round = os.environ.get(variables.WIRE, "float32") != "float32"
    rounded = [max(length - common.choice((0, 0, 9)), 0) if may_round else 0 for length in lengths]
    for name in range(len(lengths)):
        comm.declare(f"race.{name}", rounded[name], common.randrange(_PRIORITIES))
    buffers = [two_buffers(comm, name, length) for name, length in enumerate(lengths)]
    values = Values(comm.size, max(lengths), may_round)
    expected = torch.empty(max(lengths))
    under_way: deque[Sum] = deque()
    found = Checked()

    def finish() -> None:
        oldest = under_way.popleft()
        assert comm.wait(oldest.handle, PATIENCE_S), f"sum {oldest.number}, {lengths[oldest.name]} values: not there"
        want = expected[: lengths[oldest.name]]
        values.sum(oldest, want)[: oldest.begins[comm.rank]] = UNTOUCHED
        found.checked += 1
        found.digest = zlib.crc32(memoryview(oldest.buffer.numpy())[max(oldest.begins) :], found.digest)
        oldest.buffer[: rounded[oldest.name]].round_()
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
        values.give(next_one, comm.rank, next_one.buffer)
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
