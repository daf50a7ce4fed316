"""What the supervisor makes of how a run ends."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.logs import RoleLog
from dynamix_ps.launch.job.role_state import RoleState
from dynamix_ps.launch.job.supervise import Supervisor
from dynamix_ps.launch.job.verdict import Limits, RunProgress
from dynamix_ps.launch.roles.plan import JobRole


class Hosts:
    """One, with the scheduler, which is lost when the run has begun."""

    def __init__(self) -> None:
        self.lost = {"a": "timed out"}
        self.roles = {"scheduler": RoleState(JobRole("scheduler", "scheduler", host="a"), RoleLog(Path("/dev/null")))}

    def begin(self) -> None:
        self.roles["scheduler"].started = True

    def pump(self, duration_s: float) -> None: ...
    def pass_requests_on(self) -> None: ...
    def check(self) -> None: ...
    def signal(self, names: Iterable[str], number: int) -> None: ...


def test_a_job_that_has_lost_a_host_it_needs_may_begin_again() -> None:
    hosts: Any = Hosts()
    progress = RunProgress(founded=True)
    ending = Supervisor(hosts, lambda *_: None, lambda: progress, Interrupts(), Limits(elastic=True)).run()
    assert ending.by_loss and ending.reason == "host a is lost: timed out (it ran scheduler)"
