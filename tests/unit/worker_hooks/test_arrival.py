"""The state on its way to a worker that enters."""

from __future__ import annotations

import io
import threading
from contextlib import closing

import numpy as np
import pytest

from dynamix_ps.comm.peers import PeerListener, dial
from dynamix_ps.comm.state_stream import fill, send_state
from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.test_entering import HANDOVER
from worker_hooks.membership.arrival import Arrival, StateCopy

TOKEN = "secret"
STATE = b"weights" * 100_000
pytestmark = pytest.mark.timeout(60)


def test_it_is_read_to_its_end_before_the_connection_closes() -> None:
    """Else the one that gives it sees an error, and takes the newcomer for lost."""
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, dial(listener.address, TOKEN) as giver:
        send_state(giver, HANDOVER.write)
        sending = threading.Thread(target=lambda: send_state(giver, lambda out: out.write(STATE)))
        sending.start()
        arrival = Arrival(listener)
        assert arrival.handover == HANDOVER
        found = bytearray(len(STATE))
        fill(arrival.state, memoryview(found))
        sending.join()
        assert found == STATE
        assert arrival.complete() is None, "it is in the next sum"
        assert giver.recv(1) == b"", "closed, and not reset"


def test_a_newcomer_that_does_something_else_takes_no_state() -> None:
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, dial(listener.address, TOKEN) as giver:
        send_state(giver, HANDOVER.write)
        with pytest.raises(TrainingError), Arrival(listener).or_closed():
            raise TrainingError("another model")
        assert giver.recv(1) == b"", "the one that gives it is not kept waiting"


@pytest.mark.parametrize("block_bytes", [100, 1 << 20], ids=["many blocks", "one"])
def test_a_copy_of_a_state_is_as_it_was_when_it_was_made(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what writes to files alone, as NumPy does."""
    monkeypatch.setattr("worker_hooks.membership.arrival._BLOCK_BYTES", block_bytes)
    numbers, copy, out = np.arange(1000.0), StateCopy(), io.BytesIO()
    np.savez(copy, numbers=numbers)
    numbers[:] = -1.0
    copy.write_to(out)
    assert out.tell() == copy.size_bytes
    out.seek(0)
    with np.load(out) as archive:
        assert archive["numbers"].tolist() == list(range(1000))
