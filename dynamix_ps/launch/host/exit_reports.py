"""Tells the coordinator of an elastic job, from the agent beside it, which roles have ended and which workers leave.

The launcher knows all ends first, but the coordinator may not be reachable from its host.
"""

from __future__ import annotations

import uuid

from dynamix_ps.launch.messages.agent_messages import ForCoordinator
from dynamix_ps.membership.effects import suspicion
from dynamix_ps.membership.messages import AskLeave, Process
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member


class ExitReports:
    """The reports of one run. Connects at once, and again after a failure."""

    def __init__(self, access: ArbitratorAccess) -> None:
        self._member = Member(access, Process("launcher", 0, uuid.uuid4().hex))
        self._member.start()

    def tell(self, message: ForCoordinator) -> None:
        """Never waits."""
        process = Process(message.role, message.number, message.incarnation)  # type: ignore[arg-type]
        if message.request:
            self._member.tell(AskLeave(process, message.request), keep=True)
        else:
            self._member.follow(suspicion(process))

    def close(self) -> None:
        """End the reports, as the run is over. Waits a few seconds at most."""
        self._member.close()
