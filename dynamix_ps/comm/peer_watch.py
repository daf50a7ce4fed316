"""A thread that sees which connections of a data plane have closed, and looks for silence."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dynamix_ps.comm.plane import PeerFailure, Plane

_LOOK_S = 0.5  # so often it sees whether it is to end, and whether others are silent
_LOOKS_PER_LEASE = 10  # at least


class PeerWatch:
    """Of one worker or server.

    Args:
        closed: called for every connection that has closed.
        look: called after each wait for one.
    """

    def __init__(
        self, plane: Plane, lease_s: float, closed: Callable[[PeerFailure], None], look: Callable[[], None]
    ) -> None:
        self._plane, self._closed, self._look = plane, closed, look
        self._wait_s = min(_LOOK_S, lease_s / _LOOKS_PER_LEASE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-losses", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def close(self) -> None:
        """No more calls. Waits a second at most."""
        self._closing.set()
        self._thread.join(2 * _LOOK_S)

    def tell(self, wait_s: float = 0.0) -> None:
        """Call `closed` for all that have closed by now. Waits so long for the first. Any thread."""
        while (loss := self._plane.next_loss(wait_s)) is not None:
            self._closed(loss)
            wait_s = 0.0

    def _run(self) -> None:
        while not self._closing.is_set():
            self.tell(self._wait_s)
            self._look()
