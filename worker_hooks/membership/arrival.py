"""A worker that comes late, and the one that gives it the state of the training: the connection between them.

The newcomer listens, and tells the coordinator where. The others hear of it with the offer. The one that leads
connects, and sends what all know (handover.py) and the state. Over a data plane that tells sums it does so at once,
from a copy, and then sends every sum: the newcomer follows it, and is voted in when it has caught up
(dynamix_ps/comm/followed_sums.py). Else they vote, and wait for its part of its first round, and so for the state.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.followed_sums import SumGiver
from dynamix_ps.comm.peers import dial
from dynamix_ps.comm.state_stream import NO_SUM, write_piece
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Process
from dynamix_ps.rpc.access import ArbitratorAccess
from worker_hooks.membership.handover import Handover

logger = logging.getLogger("dynamix")
_KEPT_STATES, _KEPT_BYTES = 2, 256 << 20  # of sums that a newcomer has not taken: so many states, and at least these
_BLOCK_BYTES = 64 << 20
_DIAL_S = 3.0  # the newcomer listens from before it was offered


@contextmanager
def _begun(
    access: ArbitratorAccess, newcomer: Process, handover: bytes, write: Callable[[BinaryIO], None]
) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """The connection to a newcomer that has got the state, and its file.

    Raises PeerLostError or OSError if it is gone.
    """
    dialled = dial(newcomer.state_address, access.token, access.certificates, _DIAL_S)
    with closing(dialled) as connection:
        out = connection.makefile("wb")
        try:
            write_piece(out, NO_SUM, handover)
            write(out)
            out.flush()
            del write  # with the state, if that is a copy
            yield connection, out
        except BaseException:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # so that `close` does not wait for it once more
            raise
        finally:
            with suppress(OSError):
                out.close()


def give(access: ArbitratorAccess, newcomer: Process, handover: Handover, write: Callable[[BinaryIO], None]) -> bool:
    """Give a newcomer the state, which `write` writes. Returns whether it has it; if not, it is gone."""
    try:
        with _begun(access, newcomer, handover.packed(), write):
            return True
    except (PeerLostError, OSError) as error:
        logger.warning("%s has not got the state of the training: %s", newcomer, error)
        return False


class StateCopy:
    """A copy of what is written, in memory.

    Training waits for it, and most of its time goes for new memory. NumPy asks for large blocks in huge pages.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self.size_bytes = 0

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
    most_bytes = max(_KEPT_STATES * state.size_bytes, _KEPT_BYTES)
    return SumGiver(str(newcomer), _begun(access, newcomer, handover.packed(), state.write_to), most_bytes)
