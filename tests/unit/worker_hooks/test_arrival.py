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
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process
from worker_hooks.membership.arrival import Arrival, StateCopy
from worker_hooks.membership.handover import Handover

TOKEN = "secret"
STATE = b"weights" * 100_000
pytestmark = pytest.mark.timeout(60)

HANDOVER = Handover(
    framework="torch",
    settings={"mode": "adapt", "window": "50"},
    parameters={"0.weight": "float32 of shape (4, 4)", "0.bias": "float32 of shape (4,)"},
    data=[0.0, 400.0, 0.1 + 0.2],
    lengths=7,
    planned=Planned(
        [Process("worker", 0, "a", "10.0.0.1:1"), Process("worker", 2, "b")], [Process("server", 1, "c")], 3
    ),
    round=812,
    sums={"numbers": {"a": 0, "b": 1}, "shares": [1 / 3, 2 / 3], "window_bytes": None},
    lag=2,
    steps=800,
    sums_made=810,
    window=80,
    present=[0, 2],
    followed=[],
    newest=None,
    wire={"state": {"wire": "bf16", "wider_wait": 16}, "is_over": False},
    votes={"plans": {}, "entries": {"version": 1, "coming": []}, "departures": [[1, 40]]},
    gathers=[0, 0, False],
    owed=[[813, [[0, 4, 8]]]],
)


def test_it_is_read_to_its_end_before_the_connection_closes() -> None:
    """Else the one that gives it sees an error, and takes the newcomer for lost."""
    with closing(PeerListener("127.0.0.1", TOKEN)) as listener, dial(listener.address, TOKEN) as giver:
        send_state(giver, HANDOVER.write)
        sending = threading.Thread(target=lambda: send_state(giver, lambda out: out.write(STATE)))
        sending.start()
        arrival = Arrival(listener)
        found_handover = arrival.handover
        assert found_handover == HANDOVER and found_handover.planned is not None
        assert found_handover.planned.workers[0].address == "10.0.0.1:1", "which does not count in a comparison"
        assert list(found_handover.parameters) == list(HANDOVER.parameters), "in order"
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
