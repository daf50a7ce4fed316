"""The trailer: values after the gradients in the last buffer. Their sum tells every worker the same. Pure.

It needs no message of its own. Layout, in the float type of the buffer, summed over workers like the gradients:

    loss           loss of worker i times its share of the global batch, or times its units  1
    correct        correctly classified samples                                              1
    judged         samples or units whose correct ones the script has counted                1
    global_sq      |g|^2 of the sum before, as the leader computed it; 0: not measured       1
    lasted         seconds of the iteration before                                           1
    saves          1: the leader would write a checkpoint if a worker ended                  1
    votes          bits of the newest plan held (plan_switch.py)                       VERSION_BITS
    entries        bits of the newest entry into the job that is held (entries.py)     VERSION_BITS
    slots          what each worker tells of itself, one slot after the other         N slots of 15
    present        workers that have a gradient of parameter p, and REACHED times those       P
                   whose hooks on it wait for the sum, because backward has reached it

In slot i, of worker i:

    member         its incarnation; 0: the slot is empty                                      1
    ending         1: it ends after this iteration, by SIGTERM                                1
    leaving        1: it votes to leave the job (departures.py)                               1
    samples        that it has really processed since the sum before                          1
    grad_sq        |g_i|^2, g_i its mean gradient; 0: not measured                            1
    waited         seconds it waited in the iteration before                                  1
    broken         1: its loss is not finite                                                  1
    doing          code of what it is doing (agreement.py)                                    1
    weights_at     a sample of its weights: where they point (weight_samples.py)              1
    weights_size   the same: how large they are                                               1
    units          what its loss is a mean over, if not samples (units.py)                    1
    stream         of the stream that it reads (batches.py)                                   4

N is the number of slots. Who is in a sum and who is not, everybody reads from the sum itself; the one in the lowest
slot that is not empty leads: it does what one worker does for all. Counts and codes stay exact in float32 up to 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import compress
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker_hooks.planning.plan_switch import VERSION_BITS, agreed_version, version_bits

if TYPE_CHECKING:
    from worker_hooks.workers import Workers

_VOTES = 6
_ENTRIES = _VOTES + VERSION_BITS
_SLOTS = _ENTRIES + VERSION_BITS
_PARTS = 15  # of a slot
_HEAD, _SLOT = Struct(f"{_SLOTS}d"), Struct(f"{_PARTS}d")  # one call of it writes all these values
REACHED = 4096  # above the number of workers
Present = NDArray[np.integer[Any] | np.bool_]  # for every parameter, as `encode` has it


class Contribution(NamedTuple):
    """What one worker puts into the trailer of one sum."""

    samples: int
    loss: float  # mean over its samples, times its share of the global batch; with `units`, times these
    correct: float  # NaN: the script does not tell
    grad_sq: float  # NaN: not measured in this iteration
    plan_version: int
    waited_s: float
    doing: int  # 24 bits
    weights: tuple[float, float]  # direction and size of a sample
    judged: float = 0  # samples or units that `correct` is of
    global_sq: float = math.nan  # |g|^2 of the sum before; NaN: not measured; only the leader's travels
    lasted_s: float = 0.0
    ending: bool = False
    leaving: bool = False
    saves: bool = False  # only the leader's travels
    member: int = 1  # incarnation of the worker, above 0
    entry_version: int = 0  # of the newest entry into the job that it holds
    units: float = 0.0  # that its loss is a mean over, where these are not samples
    stream: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # what it tells of its reading


class GlobalView(NamedTuple):
    """What every worker reads from the summed trailer: the same values on all of them."""

    samples: int
    loss: float
    accuracy: float
    agreed_version: int | None
    worker_samples: tuple[int, ...]
    grad_sq: tuple[float, ...]  # |g_i|^2 of every worker, NaN where it was not measured
    waited_s: tuple[float, ...]
    broken_ranks: tuple[int, ...]
    doing: tuple[int, ...]
    weights: tuple[tuple[float, ...], tuple[float, ...]]  # directions and sizes of all workers
    global_sq: float = math.nan  # |g|^2 of the sum before, NaN where it was not measured
    lasted_s: float = 0.0  # the iteration before, mean of the workers
    members: tuple[int, ...] = ()  # incarnations of the workers by slot; 0: it is empty
    ending_ranks: tuple[int, ...] = ()  # of workers that end after this iteration, by SIGTERM
    leaving_ranks: tuple[int, ...] = ()  # of workers that vote to leave the job
    saves: bool = False  # whether the leader would write a checkpoint then
    agreed_entry: int | None = None  # version of an entry into the job that all hold as their newest
    units: tuple[float, ...] = ()  # of every worker; zeros where losses are means over samples
    stream: tuple[tuple[float, float, float, float], ...] = ()  # of every worker

    @property
    def present(self) -> list[int]:
        """The slots of the workers in this sum, the leader's first."""
        return [slot for slot, member in enumerate(self.members) if member]

    @property
    def shortest_wait_s(self) -> float:
        """Of the worker that waited least in the iteration before."""
        return min(compress(self.waited_s, self.members))

    @property
    def ending(self) -> bool:
        """Whether a worker ends after this iteration."""
        return bool(self.ending_ranks)

    @property
    def loss_weight(self) -> float:
        """What the loss is a mean over: units where the script gives them, samples otherwise."""
        return sum(self.units) or self.samples


class SumTrailer:
    """The trailer in the sums of one exchange: what this process writes there, and what all read.

    Attributes:
        telling: what the workers of this process tell the others in the next sum, behind the trailer, of shape
            (workers.told, workers.count); 0 for the workers of other processes.
        told: what all have told in the last one.
        present: slots of the workers in the last sum.
        leader: slot of the one that leads, as of the last sum.
    """

    def __init__(self, workers: Workers, parameters: int) -> None:
        self._workers = workers
        self._values = np.zeros(trailer_length(workers, parameters))
        self._end = length(workers.count, parameters)
        self._written_present: Present | None = None
        self._received: NDArray[np.floating[Any]] = self._values  # of the last sum of gradients
        self.telling = self.told = np.zeros((workers.told, workers.count))
        self.present: Sequence[int] = workers.first
        self.leader = workers.leader

    def written(self, mine: Sequence[Contribution], present: Present) -> NDArray[np.float64]:
        """What this process writes. The arguments are those of `encode`; the slots of others stay zeros.

        An array `present` that is the same object as before must have the same values.
        """
        first = self._workers.here.start
        _write(mine, first, self._values, leads=first == self.leader)
        if present is not self._written_present:
            self._values[self._end - len(present) : self._end] = present
            self._written_present = present
        if self._workers.told:
            self._values[self._end :] = self.telling.ravel()
        return self._values

    def read(self, received: NDArray[np.floating[Any]]) -> GlobalView:
        """The trailer of a sum of gradients."""
        self._received = received[: self._end]
        if self._workers.told:
            self.told = received[self._end :].reshape(self.telling.shape).astype(np.float64)
        return self.read_announcement(received)

    def read_announcement(self, received: NDArray[np.floating[Any]]) -> GlobalView:
        """The trailer of a sum without gradients."""
        view = decode(received[: self._end], self._workers.count)
        self.present = view.present
        self.leader = self.present[0]
        return view

    def has_gradient(self) -> NDArray[np.bool_]:
        """Of which parameters at least one worker has a gradient in the last sum."""
        return present(self._received, self._workers.count)

    def reached(self) -> NDArray[np.intp]:
        """Numbers, rising, of the parameters whose hooks wait for the last sum on at least one worker."""
        return np.flatnonzero(self._received[_SLOTS + _PARTS * self._workers.count :] >= REACHED)

    def as_summed(self, values: Sequence[float]) -> list[float]:
        """These values as they come out of a sum to which nobody adds anything."""
        rounded: list[float] = np.asarray(values, dtype=self._received.dtype).tolist()
        return rounded

    def go_without(self, slots: Collection[int]) -> None:
        """The last sum was the last one of these workers: another one may lead from now on."""
        self.present = [slot for slot in self.present if slot not in slots]
        self.leader = min(self.present, default=self.leader)


def trailer_length(workers: Workers, parameters: int) -> int:
    """Number of values behind the gradients: the trailer, and behind it what workers tell each other."""
    return length(workers.count, parameters) + workers.told * workers.count


def length(workers: int, parameters: int) -> int:
    """Number of values in the trailer for so many slots of workers, and `parameters` parameters."""
    return _SLOTS + _PARTS * workers + parameters


def encode(
    mine: Sequence[Contribution],
    rank: int,
    workers: int,
    present: Present,
    out: NDArray[np.floating[Any]],
    leads: bool,
) -> None:
    """Write the trailer of one process to `out`, shape (length(workers, len(present)),).

    A broken loss becomes a 1 in `broken`.

    Args:
        mine: of the workers of this process, from worker `rank` on. They hold the same plan and the same entry.
        present: for every parameter whether this process has a gradient, and REACHED more where its hooks wait.
        leads: whether the leader is one of them.
    """
    values = np.zeros(length(workers, len(present)))
    _write(mine, rank, values, leads)
    values[len(values) - len(present) :] = present
    out[:] = values


def _write(mine: Sequence[Contribution], rank: int, out: NDArray[np.float64], leads: bool) -> None:
    """What `encode` writes at the beginning of `out`, but for the slots of other processes, and `present`."""
    loss = correct = judged = lasted_s = 0.0
    at = out.itemsize * (_SLOTS + _PARTS * rank)
    for one in mine:
        finite = math.isfinite(one.loss)
        loss += one.loss if finite else 0.0
        lasted_s += one.lasted_s
        if not math.isnan(one.correct):
            correct, judged = correct + one.correct, judged + one.judged
        grad_sq = one.grad_sq if math.isfinite(one.grad_sq) else 0.0
        who = one.member, one.ending, one.leaving, one.samples, grad_sq, one.waited_s, not finite, one.doing
        _SLOT.pack_into(out.data, at, *who, *one.weights, one.units, *one.stream)
        at += _SLOT.size
    first = mine[0]
    global_sq = first.global_sq if leads and math.isfinite(first.global_sq) else 0.0
    votes = _votes(first.plan_version, first.entry_version, len(mine))
    _HEAD.pack_into(out.data, 0, loss, correct, judged, global_sq, lasted_s, first.saves and leads, *votes)


@lru_cache(maxsize=16)
def _votes(plan_version: int, entry_version: int, workers: int) -> tuple[int, ...]:
    """Of so many workers, for the plan and then for the entry."""
    return tuple(workers * bit for bit in version_bits(plan_version) + version_bits(entry_version))


def decode(total: NDArray[np.floating[Any]], workers: int) -> GlobalView:
    """Read the summed trailer. Means over nothing are NaN."""
    end = _SLOTS + _PARTS * workers
    values = total[:end].tolist()  # once: plain lists are several times faster here than arrays
    loss, correct, judged, global_sq, lasted_s, saves = values[:_VOTES]
    members, ending, leaving, sizes, grad_sq, waited_s, broken, doing, directions, weight_sizes, units, *stream = [
        values[part::_PARTS] for part in range(_SLOTS, _SLOTS + _PARTS)
    ]
    samples, count = int(sum(sizes)), workers - members.count(0.0)
    if (total_units := sum(units)) > 0:
        loss /= total_units
    return GlobalView(
        samples=samples,
        loss=loss if samples else math.nan,
        accuracy=correct / judged if judged else math.nan,
        agreed_version=agreed_version(values[_VOTES:_ENTRIES], count),
        agreed_entry=agreed_version(values[_ENTRIES:_SLOTS], count),
        worker_samples=tuple(map(int, sizes)),
        grad_sq=tuple(square or math.nan for square in grad_sq) if any(grad_sq) else (math.nan,) * workers,
        waited_s=tuple(waited_s),
        broken_ranks=_marked(broken),
        doing=tuple(map(int, doing)),
        weights=(tuple(directions), tuple(weight_sizes)),
        global_sq=global_sq or math.nan,
        lasted_s=lasted_s / count,
        members=tuple(map(int, members)),
        ending_ranks=_marked(ending),
        leaving_ranks=_marked(leaving),
        saves=saves > 0,
        units=tuple(units),
        stream=tuple(zip(*stream, strict=True)),
    )


def _marked(slots: list[float]) -> tuple[int, ...]:
    """The slots that have a 1; usually none."""
    return tuple(slot for slot, mark in enumerate(slots) if mark) if any(slots) else ()


def present(total: NDArray[np.floating[Any]], workers: int) -> NDArray[np.bool_]:
    """Which parameters at least one worker has a gradient of, shape (P,)."""
    counted: NDArray[np.bool_] = total[_SLOTS + _PARTS * workers :] > 0
    return counted
