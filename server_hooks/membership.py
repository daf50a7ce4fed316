"""A server's part in changes of membership, in threads beside BytePS's main loop, which runs in C++ without the GIL."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dynamix_ps.comm.plane import ServerPlane
from dynamix_ps.membership.messages import Fence, Fenced, FromCoordinator, Process, ToCoordinator
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member

_LOOK_S = 0.5  # a thread that waits for losses sees so often whether it is to end


class ServerMember:
    """Keeps the sums of a server in step with the members of the job. `process`: this server; `plane`: its sums."""

    def __init__(self, access: ArbitratorAccess, process: Process, plane: ServerPlane) -> None:
        self._plane = plane
        self._generation = 0
        self._closing = threading.Event()
        self._member = Member(access, process, self._act)
        self._watch = threading.Thread(target=self._watch_losses, name="dynamix-losses", daemon=True)

    def start(self) -> None:
        """This server is a member from now on. Returns at once."""
        self._member.start()
        self._watch.start()

    def close(self) -> None:
        """All workers have left. Waits a few seconds at most."""
        self._closing.set()
        self._member.close()
        self._watch.join(2 * _LOOK_S)

    def _watch_losses(self) -> None:
        while not self._closing.is_set():
            loss = self._plane.next_loss(_LOOK_S)
            if loss is not None and loss.kind == "worker":
                self._member.suspect(loss.kind, loss.rank)

    def _act(self, message: FromCoordinator) -> Iterable[ToCoordinator]:
        if not isinstance(message, Fence):
            return []
        if message.generation > self._generation:
            self._generation = message.generation
            self._plane.fence(message.generation, message.first_round)
        return [Fenced(message.generation)]
