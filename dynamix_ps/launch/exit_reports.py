"""What the launcher tells the coordinator of an elastic job: which roles have ended, and which workers are to leave.

Nobody knows ends sooner or better.
"""

from __future__ import annotations

import uuid

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.plan import JobRole
from dynamix_ps.membership.messages import AskLeave, Process
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.member import Member


class ExitReports:
    """Of one run. It connects with the first role that ends otherwise than in order, or worker that is to leave.

    Args:
        arbitrator: host:port, in whose process the coordinator is.
        certificates: with which calls are encrypted; none: they are not.
    """

    def __init__(
        self, config: Config, run_id: str, token: str, arbitrator: str, certificates: Certificates | None
    ) -> None:
        self._access = ArbitratorAccess(arbitrator, run_id, token, config.timeouts, certificates)
        self._member: Member | None = None

    def ended(self, role: JobRole, exit_code: int, incarnation: str) -> None:
        """A role has ended. Never waits."""
        if role.number is None or exit_code == 0:
            return
        self._connected().suspect(role.role, role.number, incarnation)

    def ask_to_leave(self, rank: int) -> None:
        """A worker shall leave the job. Never waits."""
        self._connected().tell(AskLeave(Process("worker", rank, "")))

    def _connected(self) -> Member:
        if self._member is None:
            self._member = Member(self._access, Process("launcher", 0, uuid.uuid4().hex))
            self._member.start()
        return self._member

    def close(self) -> None:
        """The run is over. Waits a few seconds at most."""
        if self._member is not None:
            self._member.close()
