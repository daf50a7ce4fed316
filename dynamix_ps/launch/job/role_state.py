"""What the launcher knows of a role, from the messages of its agent."""

from __future__ import annotations

from dynamix_ps.launch.job.logs import RoleLog
from dynamix_ps.launch.roles.plan import JobRole
from dynamix_ps.membership.messages import incarnation_of


class RoleState:
    """One start of a role. `exit_code`: negative for a signal, none while it runs."""

    def __init__(self, role: JobRole, log: RoleLog) -> None:
        self.role, self.log = role, log
        self.started = False
        self.starts = 0  # again
        self.entered = False  # a worker that takes part, or has
        self.asked_to_leave = 0  # how often
        self.exit_code: int | None = None
        self.ended_s: float | None = None  # monotonic
        self.suspended = False
        self.lost_with = ""  # host

    @property
    def running(self) -> bool:
        return self.started and self.exit_code is None

    @property
    def absent(self) -> bool:
        """Whether the role is to start later and has not been started yet."""
        return self.role.later and not self.starts

    @property
    def incarnation(self) -> str:
        """The name by which the coordinator of an elastic job knows this process."""
        return incarnation_of(self.starts)
