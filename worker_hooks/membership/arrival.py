"""A worker that comes late, and the one that gives it the state of the training: the connection between them.

The newcomer listens, and tells the coordinator where. The others hear of it with the offer. The one that leads
connects, and sends what all know (handover.py) and the state. Over a data plane that tells sums it does so at once,
from a copy, and then sends every sum: the newcomer follows it, and is voted in when it has caught up
(dynamix_ps/comm/followed_sums.py). Else they vote, and wait for its part of its first round, and so for the state.
"""

from __future__ import annotations

import io
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.followed_sums import SumGiver, SumTaker
from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.comm.state_stream import NO_SUM, write_piece
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Process
from dynamix_ps.rpc.access import ArbitratorAccess
from worker_hooks.membership.handover import Handover

logger = logging.getLogger("dynamix")
_LOOK_S = 1.0  # so often a wait lets signals in
_KEPT_STATES, _KEPT_BYTES = 2, 256 << 20  # of sums that a newcomer has not taken: so many states, and at least these
_BLOCK_BYTES = 64 << 20
_DIAL_S = 3.0  # the newcomer listens from before it was offered


class Arrival:
    """What a newcomer gets: `handover`, then `state`, to be read once and to its end."""

    def __init__(self, listener: PeerListener) -> None:
        """Waits for it. Raises PeerLostError if the one that sends is lost."""
        while (connection := listener.next(_LOOK_S)) is None:
            pass
        self._taker = SumTaker(connection)
        self.state = self._taker.stream
        with self.or_closed():
            self.handover = Handover.of(self._taker.told())

    @contextmanager
    def or_closed(self) -> Iterator[None]:
        """Closes the connection after an error inside, so that the one that sends does not wait."""
        try:
            yield
        except BaseException:
            self._taker.close()
            raise

    def complete(self) -> SumTaker | None:
        """The state is read. Returns the sums to follow; None: this worker is in the next one."""
        if self.handover.planned is None:
            return self._taker
        self._taker.close()
        return None


def _dialled(access: ArbitratorAccess, newcomer: Process) -> socket.socket:
    return dial(newcomer.state_address, access.token, access.certificates, _DIAL_S)


def _begin(handover: Handover, write: Callable[[BinaryIO], None], out: BinaryIO) -> None:
    """What a newcomer gets first."""
    write_piece(out, NO_SUM, handover.packed())
    write(out)


def give(access: ArbitratorAccess, newcomer: Process, handover: Handover, write: Callable[[BinaryIO], None]) -> bool:
    """Give a newcomer the state, which `write` writes. Returns whether it has it; if not, it is gone."""
    try:
        with closing(_dialled(access, newcomer)) as connection, connection.makefile("wb") as out:
            _begin(handover, write, out)
    except (PeerLostError, OSError) as error:
        logger.warning("%s has not got the state of the training: %s", newcomer, error)
        return False
    return True


class StateCopy(io.RawIOBase):
    """A copy of what is written, in memory.

    Training waits for it, and most of its time goes for new memory. NumPy asks for large blocks in huge pages.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        left = memoryview(piece).cast("B")
        size_bytes = len(left)
        while len(left):
            used = self.size_bytes % _BLOCK_BYTES
            if not used:
                self._blocks.append(np.empty(_BLOCK_BYTES, np.uint8))
            part = left[: _BLOCK_BYTES - used]
            self._blocks[-1][used : used + len(part)] = part
            self.size_bytes += len(part)
            left = left[len(part) :]
        return size_bytes

    def write_to(self, out: BinaryIO) -> None:
        """Write it once more."""
        left_bytes = self.size_bytes
        for block in self._blocks:
            out.write(block.data[:left_bytes])
            left_bytes -= len(block)


def follow(access: ArbitratorAccess, newcomer: Process, handover: Handover, state: StateCopy) -> SumGiver:
    """Give a newcomer the copy of a state, and then all sums, beside training."""
    return SumGiver(
        str(newcomer),
        partial(_dialled, access, newcomer),
        partial(_begin, handover, state.write_to),
        max(_KEPT_STATES * state.size_bytes, _KEPT_BYTES),
    )
