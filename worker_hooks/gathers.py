"""Rows of all workers, for losses over pairs in a batch: the sums behind `run.gather`.

The data plane has only sums. So a gather is two of them: a header, in which every worker tells what it is about to do
and how many bytes its rows have, and the rows themselves, in which every worker has zeros in the places of the others.
The bytes arrive as they were sent, whatever their type.

A worker may be in a gather while another one is in the sum of its gradients. Two sums under different names would wait
for each other for ever. So all workers look for each other under one name:

    they have gathered so often between two sums already     in the header of the next gather, who gathers or not
    they have not                                            in an announcement, which meets a sum of gradients

Both cases are the same on all workers, because they follow from the calls that all have made. An announcement is as
large as the gradients, and is made once for each further gather between two sums.

Every worker computes the loss over all rows, so the gradient with respect to them must be the same on all workers.
With each sum of gradients a small one compares numbers that stand for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import PeerLostError, TrainingError
from worker_hooks.exchange.agreement import name_workers

if TYPE_CHECKING:
    from dynamix_ps.comm import Comm
    from worker_hooks.sums import Sums
    from worker_hooks.workers import Workers

LOOKS = 3  # numbers that stand for a gradient; they are all alike by chance once in a million times
_TOLERANCE = 0.02  # of its norm: half precision, and devices that round in other ways (chosen by us)
_LEAST_WORDS = 512  # of a buffer for rows; its size doubles, because that of a name may not change
_WORD_BYTES = 8


class Gathers:
    """The gathers of one training.

    Attributes:
        with_gradient: rows that need a gradient were gathered since the last sum of gradients.
        looks: numbers that stand for the gradient with respect to all rows, shape (LOOKS,), added up since then.
        norm: of this gradient.
    """

    def __init__(self, sums: Sums, comm: Comm, workers: Workers) -> None:
        self._sums, self._comm, self._workers = sums, comm, workers
        self._prefix = f"{sums.prefix}.gather"
        self._most = 0  # gathers between two other sums, so far
        self._made = 0  # since the last one
        self._forget_gradient()
        for key in ("header", "looks"):
            self._comm.declare(f"{self._prefix}.{key}")

    def _forget_gradient(self) -> None:
        self.with_gradient, self.norm, self.looks = False, 0.0, np.zeros(LOOKS)

    def packed(self) -> list[int]:
        """In JSON's types, for a worker that enters."""
        return [self._most, self._made, self.with_gradient]

    def take_over(self, packed: Sequence[int]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._most, self._made, self.with_gradient = packed[0], packed[1], bool(packed[2])

    def bytes_of_all(self, what: str, own: bytes, with_gradient: bool, expected: Collection[int]) -> dict[int, bytes]:
        """What every worker has given, by its slot, rising. Collective.

        Args:
            what: describes one row; it must be the same on all workers.
            expected: slots of the workers whose rows must be among them.

        Raises:
            TrainingError: on all workers, if another one does something else.
            PeerLostError: on all workers, if one of the `expected` ones is lost.
        """
        made = self._made
        kind = f"run.gather() of {what}" + (" with a gradient" if with_gradient else "")
        if made == self._most:
            self._sums.announce(kind)
            self._most += 1
        self._made = made + 1
        self.with_gradient |= with_gradient
        sizes = self._meet(kind, len(own))
        rows = self._rows(sizes, own)
        slots = self._workers.slots_of(rows)
        if lost := sorted(set(expected).difference(slots)):
            raise _lost(lost, self._sums.progress.iteration)
        return dict(sorted(zip(slots, rows.values(), strict=True)))

    def before_sum(self, kind: str) -> None:
        """Before every sum that is none of a gather: others may be in one.

        Raises TrainingError, on all workers, if so.
        """
        if self._made < self._most:
            self._meet(kind, 0)
        self._made = 0

    def _meet(self, kind: str, size_bytes: int) -> dict[int, int]:
        """All workers are about to do `kind`. Returns how many bytes they have, by rank, rising."""
        sums, comm = self._sums, self._comm
        header = np.zeros((comm.size, 2), dtype=np.int64)
        header[comm.rank] = 1 + sums.doing(kind).code(), size_bytes
        header = self._sum("header", header.ravel()).reshape(header.shape)
        there: list[int] = np.flatnonzero(header[:, 0]).tolist()
        sums.check_codes([int(header[rank, 0]) - 1 for rank in there], kind)
        return {rank: int(header[rank, 1]) for rank in there}

    def _rows(self, sizes: dict[int, int], own: bytes) -> dict[int, bytes]:
        """The bytes of those that are there. A last word of each says that it is."""
        comm = self._comm
        begins, end = {}, 0
        for rank, size in sizes.items():
            begins[rank] = end
            end += -(-size // _WORD_BYTES) + 1
        words = max(_LEAST_WORDS, 1 << (end - 1).bit_length())
        packed = np.zeros(words, dtype=np.int64)
        octets = packed.view(np.uint8)
        if comm.rank in sizes:  # else it follows those that are
            begin = begins[comm.rank]
            octets[begin * _WORD_BYTES : begin * _WORD_BYTES + len(own)] = np.frombuffer(own, dtype=np.uint8)
            packed[begin + -(-len(own) // _WORD_BYTES)] = 1
        key = f"rows.{words}"
        comm.declare(f"{self._prefix}.{key}")
        packed = self._sum(key, packed)
        octets = packed.view(np.uint8)
        return {
            rank: octets[begins[rank] * _WORD_BYTES : begins[rank] * _WORD_BYTES + size].tobytes()
            for rank, size in sizes.items()
            if packed[begins[rank] + -(-size // _WORD_BYTES)]
        }

    def _sum(self, key: str, values: NDArray[Any]) -> NDArray[Any]:
        with self._sums.watch.blocked():
            return self._comm.total(f"{self._prefix}.{key}", values, self._sums.tell_waiting)

    def check_gradient(self, missing: Collection[int], has_samples: bool) -> None:
        """After a sum of gradients, which has those of the gathered rows in it. Collective.

        Args:
            missing: workers that were to be in the sum.
            has_samples: this worker has a loss.

        Raises:
            TrainingError: on all workers, if the gradient with respect to all rows is not the same on them.
            PeerLostError: on all workers, if one is missing, on whose rows the losses depend.
        """
        if not self.with_gradient:
            return
        comm, iteration = self._comm, self._sums.progress.iteration
        if missing:
            raise _lost(sorted(missing), iteration)
        own = np.zeros((comm.size, 2 + LOOKS))
        own[comm.rank] = (1 + has_samples, self.norm, *self.looks)
        told = self._sum("looks", own.ravel()).reshape(own.shape)
        self._forget_gradient()
        told = told[told[:, 0] == 2]  # those with samples: others have no loss
        if not np.isfinite(told).all():
            return  # a loss that is not finite is told of by itself, and a GradScaler skips the step
        if np.ptp(told[:, 1:], axis=0).max(initial=0.0) > _TOLERANCE * told[:, 1].max(initial=0.0):
            raise TrainingError(
                f"the losses of iteration {iteration} depend in different ways on the rows that run.gather() "
                "returned: compute the same loss over all rows on every worker, not one of this worker's own rows "
                "against all, and make what is random in it the same; no step was made with this loss"
            )

    def refuse(self, reduction: str, has_weight: bool) -> None:
        """Raises TrainingError, on all workers, for a run.backward() that takes no loss over gathered rows."""
        if self.with_gradient and (reduction != "mean" or has_weight):
            call = f"run.backward(loss, {'weight=...' if has_weight else f'reduction={reduction!r}'})"
            self._sums.announce(f"{call} after run.gather()")
            raise TrainingError(
                f"{call} in iteration {self._sums.progress.iteration} after run.gather(): every worker has the loss "
                "over all rows, and it counts once; call run.backward(loss), whatever this loss is a sum or a mean over"
            )


def _lost(slots: list[int], iteration: int) -> PeerLostError:
    return PeerLostError(
        f"{name_workers(slots)} is lost in iteration {iteration}, and the losses of the others need its rows, which "
        "run.gather() returns; start again from a checkpoint"
    )


def factor(weight: float) -> float:
    """What the gradient of this worker's own rows is multiplied by, where its gradients count with `weight`.

    Let x_i be the rows of worker i, and L(x_1, ..., x_N) the loss, which every worker computes. The gradient that one
    process has is the sum over i of dL/dx_i dx_i/dw, and of dL/dw by what is computed behind the rows. Worker i knows
    all of dL/dx, and from its own rows leads the way back to the weights. run.backward() makes sum(b_i g_i) / B of the
    gradients g_i of the workers. So dL/dx_i, times B / b_i, is what makes the first part right: the share of the worker
    takes the factor out again. The second part is the same on all workers, and the shares add up to 1. So are losses
    right that are added to L: each worker's mean over its own samples, and penalties on weights.

    The number of rows does not matter: a sample may have two, as with two views, or none.
    """
    return 1 / weight if weight else 0.0
