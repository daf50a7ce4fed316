"""A worker that comes late, and the one that gives it the state of the training: the connection between them.

The newcomer listens, and tells the coordinator where. The others hear of it with the offer, and vote. In its first
round the one that leads connects, and sends what all know (handover.py) and the state. The others wait for the
newcomer's part of this round, and so for the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO

from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.comm.state_stream import receive_state, send_state
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Process
from dynamix_ps.rpc.access import ArbitratorAccess
from worker_hooks.handover import Handover

logger = logging.getLogger("dynamix")
_LOOK_S = 1.0  # so often a wait lets signals in
_DIAL_S = 3.0  # the newcomer listens from before it was offered


@contextmanager
def received(listener: PeerListener) -> Iterator[tuple[Handover, BinaryIO]]:
    """What a newcomer gets in its first round; waits until then. The state is to be read inside of the block.

    Raises PeerLostError if the one that sends is lost.
    """
    while (connection := listener.next(_LOOK_S)) is None:
        pass
    with closing(connection):
        handover, state = Handover.read(receive_state(connection)), receive_state(connection)
        yield handover, state
        state.read()  # its end: the one that sends must not find the connection closed before


def give(access: ArbitratorAccess, newcomer: Process, handover: Handover, write: Callable[[BinaryIO], None]) -> bool:
    """Give a newcomer the state, which `write` writes. Returns whether it has it; if not, it is gone."""
    try:
        with closing(dial(newcomer.address, access.token, access.certificates, _DIAL_S)) as connection:
            send_state(connection, handover.write)
            send_state(connection, write)
    except PeerLostError as error:
        logger.warning("%s has not got the state of the training: %s", newcomer, error)
        return False
    return True
