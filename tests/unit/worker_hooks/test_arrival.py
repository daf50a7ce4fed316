"""The state on its way to a worker that enters."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.comm.state_stream import fill, send_state
from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.test_entering import HANDOVER
from worker_hooks.arrival import received

TOKEN = "secret"
STATE = b"weights" * 100_000
pytestmark = pytest.mark.timeout(60)


def test_it_is_read_to_its_end_before_the_connection_closes() -> None:
    """Else the one that gives it sees an error, and takes the newcomer for lost."""
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, dial(listener.address, TOKEN) as giver:
        send_state(giver, HANDOVER.write)
        sending = threading.Thread(target=lambda: send_state(giver, lambda out: out.write(STATE)))
        sending.start()
        with received(listener) as (handover, state):
            assert handover == HANDOVER
            found = bytearray(len(STATE))
            fill(state, memoryview(found))
            sending.join()
            assert found == STATE
        assert giver.recv(1) == b"", "closed, and not reset"


def test_a_newcomer_that_does_something_else_takes_no_state() -> None:
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, dial(listener.address, TOKEN) as giver:
        send_state(giver, HANDOVER.write)
        with pytest.raises(TrainingError), received(listener):
            raise TrainingError("another model")
        assert giver.recv(1) == b"", "the one that gives it is not kept waiting"
