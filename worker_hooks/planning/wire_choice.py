"""By which wire gradients travel with `cluster.wire: auto`. Pure.

After every BLOCK iterations, medians of the shorter half of them are looked at, as whatever else a machine does makes
some longer: T, how long an iteration lasted; e, how long the worker that waited least has waited for its sum, which is
what the network adds to computing; B, the global batch.

A sum takes e + h, of which computing hides h. In r times the bytes it would take r (e + h), and workers would wait for
max(r (e + h) - h, 0). So another wire saves at least (1 - r) e, or costs at least as much if it is wider (r > 1).

    narrower   where it saves at least a tenth of T
    back       after its first block, unless it has saved half of what was expected: its T, at the batch B', is compared
               with (T - e) B'/B + e
    wider      after some blocks, where it costs less than a tenth of T as far as is known. It may cost more, as only
               trying tells what was hidden. If the narrower wire is worth it, the next block brings that back

Every try in vain doubles the time until the next one. When the loss rises (loss_watch.py) while gradients are
rounded, float32 comes back for the rest of the run.

All inputs come from the sums, so all workers choose the same after the same sum, without a message. The constants are
chosen by us.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from worker_hooks.planning.loss_watch import LossWatch

BYTES = {"float32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 256}  # of a value
BLOCK = 40  # iterations
LEAST = 0.1  # of T
_NARROWER_WAIT, _WIDER_WAIT = 1, 8  # blocks; a narrower wire in vain costs little, a wider one may cost much


class Block(NamedTuple):
    """Of an iteration, or medians of iterations under one wire."""

    lasted_s: float
    exposed_s: float
    batch: float

    def saving_s(self, wire: str, other: str) -> float:
        """What `other` saves at least in an iteration; negative: what it costs at least."""
        return self.exposed_s * (1 - BYTES[other] / BYTES[wire])

    def lasts_s(self, batch: float) -> float:
        """An iteration with this global batch, under the same wire."""
        return (self.lasted_s - self.exposed_s) * batch / self.batch + self.exposed_s


@dataclass(frozen=True, slots=True)
class WireState:
    """The wire in use, and what has been tried.

    Attributes:
        narrower_wait: blocks from a narrower wire in vain to the next one.
        wider_wait: blocks from a narrower wire that pays to a look at the wider one.
        narrower_in, wider_in: blocks that are left of this.
        before: the last block of the wider wire, where the one in use is in its first block.
        looks: the one in use is in its first block after a narrower one.
    """

    wire: str = "float32"
    narrower_wait: int = _NARROWER_WAIT
    wider_wait: int = _WIDER_WAIT
    narrower_in: int = 0
    wider_in: int = 0
    before: Block | None = None
    looks: bool = False


def choose_wire(wires: Sequence[str], now: WireState, block: Block) -> tuple[WireState, str]:
    """What follows from a block, and why; no reason: the wire stays.

    `wires`: those that may be used, from wide to narrow.
    """
    at = wires.index(now.wire)
    wider, narrower = wires[at - 1] if at else "", wires[at + 1] if at + 1 < len(wires) else ""
    if now.before is not None:
        most_s = now.before.lasts_s(block.batch) - now.before.saving_s(wider, now.wire) / 2
        if block.lasted_s > most_s:
            back = WireState(wider, 2 * now.narrower_wait, now.wider_wait, narrower_in=now.narrower_wait)
            return back, f"{now.wire} has not made iterations shorter"
    of_time = 1 / block.lasted_s
    exposed = f"workers wait for the network in {100 * block.exposed_s * of_time:.0f} % of the time"
    if narrower and not now.narrower_in and (saved := block.saving_s(now.wire, narrower) * of_time) >= LEAST:
        wait = 2 * now.wider_wait if now.looks else now.wider_wait
        why = f"{exposed}, of which {narrower} saves {100 * saved:.0f} % at least"
        return WireState(narrower, now.narrower_wait, wait, wider_in=wait, before=block), why
    if wider and not now.wider_in and -block.saving_s(now.wire, wider) * of_time < LEAST:
        return WireState(wider, now.narrower_wait, now.wider_wait, looks=True), f"{exposed}, so {wider} may do"
    narrower_in, wider_in = max(now.narrower_in - 1, 0), max(now.wider_in - 1, 0)
    return replace(now, narrower_in=narrower_in, wider_in=wider_in, before=None, looks=False), ""


class WireChoice:
    """The choice of one training.

    Args:
        wires: those that may be used, from wide to narrow; the first one rounds nothing.
    """

    def __init__(self, wires: Sequence[str]) -> None:
        self._wires = wires
        self._state = WireState(wires[0])
        self._is_over = False  # the loss has risen
        self.renew()

    @property
    def wire(self) -> str:
        """The one in use."""
        return self._state.wire

    def renew(self) -> None:
        """Forget what was seen, such as where a worker enters that has not seen it."""
        self._watch = LossWatch()
        self._state = replace(self._state, before=None, looks=False)
        self._begin_block()

    def _begin_block(self) -> None:
        self._skips = True  # a sum tells of the iteration before
        self._seen: list[Block] = []

    def see(self, lasted_s: float, exposed_s: float, batch: float, loss: float, rolled_back: bool) -> str:
        """Take in what a sum tells. Returns why the next sum has another wire; empty: it has the same.

        Args:
            lasted_s, exposed_s: of the iteration before.
            batch: the global batch of this iteration.
            loss: of this iteration.
            rolled_back: the guard of the learning rate has found that the loss rises.
        """
        if self._is_over:
            return ""
        if (batch and math.isfinite(loss) and self._watch.rises(loss, batch)) or rolled_back:
            if self.wire != self._wires[0]:
                self._is_over, self._state = True, WireState(self._wires[0])
                return f"the loss rises; {self.wire} stays for the rest of the run"
            self._watch.forgive()
        if self._skips or not batch or not lasted_s:
            self._skips = False
            return ""
        self._seen.append(Block(lasted_s, exposed_s, batch))
        if len(self._seen) < BLOCK:
            return ""
        shorter = sorted(self._seen)[: BLOCK // 2]
        block = Block(*map(statistics.median, zip(*shorter, strict=True)))
        self._state, reason = choose_wire(self._wires, self._state, block)
        self._begin_block()
        self._skips = bool(reason)
        return reason

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters when all begin anew."""
        return {"state": asdict(self._state), "is_over": self._is_over}

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._state, self._is_over = WireState(**packed["state"]), packed["is_over"]
