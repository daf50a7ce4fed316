"""The supervisor with small processes as roles: order of stopping, what is killed when, how roles start."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.errors import DynamixError
from dynamix_ps.launch.host.role_group import RoleGroup
from dynamix_ps.launch.job import run_hosts
from dynamix_ps.launch.job.elastic_hosts import ElasticHosts
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.supervise import Supervisor
from dynamix_ps.launch.job.verdict import Ending, Limits, RunProgress
from dynamix_ps.launch.messages.agent_messages import (
    Begin,
    CleanedUp,
    CleanUp,
    Prepare,
    Prepared,
    RequestRefused,
    Signal,
    ToAgent,
)
from dynamix_ps.launch.roles.plan import JobRole, RoleSpec
from dynamix_ps.launch.targets.agent_link import Deliver
from tests.unit.synthetic_run import new_folder

pytestmark = pytest.mark.timeout(60)

# Says when it is ready and when it is told to end.
OBEDIENT = """
import os, signal, sys, time
def end(*_):
    with open(sys.argv[1], "a") as out: out.write(os.environ["ROLE"] + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: time.sleep(1)
"""
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\nwhile True: time.sleep(1)"
)


class NoEvents:
    def event(self, kind: str, **fields: object) -> None:
        pytest.fail(f"{kind}: {fields}")


PATIENT = Limits(stop_grace_s=1000, fail_grace_s=1000, end_grace_s=1000)


class OneGroup:
    """A target and a link: its agent starts the given processes, whatever the cluster file says."""

    shares_run_folder, has_room, lost = True, True, ""

    def __init__(self, roles: list[RoleSpec]) -> None:
        self._roles = roles

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> OneGroup:
        self.group = RoleGroup(selector, lambda message: deliver(host, message), os.environ)
        self._tell = lambda message: deliver(host, message)
        return self

    def send(self, message: ToAgent) -> None:
        if isinstance(message, Prepare):
            self._tell(Prepared("127.0.0.1", 0, 0, ""))
        elif isinstance(message, Signal):
            self.group.signal(message.roles, message.number)
        elif isinstance(message, CleanUp):
            self.close()
            self._tell(CleanedUp())
        elif isinstance(message, Begin):
            try:
                for spec in self._roles:
                    self.group.start(spec)
            except DynamixError as error:
                self._tell(RequestRefused(error.exit_code, str(error)))

    def tick(self) -> None:
        self.group.tick()

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        self.group.end(grace_s=1.0)


class Rig:
    """Roles under a supervisor; `then(ready)` is called every tick with the number of roles that are ready."""

    def __init__(self, folder: Path, limits: Limits = PATIENT) -> None:
        self.folder, self.limits = folder, limits
        self.roles: list[RoleSpec] = []
        self.interrupts = Interrupts()
        self.lines: list[tuple[str, str]] = []
        self.then: Callable[[], None] = lambda: None

    def role(self, name: str, code: str, **environ: str) -> None:
        kind = name.partition("-")[0]
        rank = int(name.partition("-")[2]) if kind == "worker" else None
        argv = (sys.executable, "-c", code, str(self.folder / "order"))
        self.roles.append(RoleSpec(name, kind, argv, {"ROLE": name, **environ}, rank))  # type: ignore[arg-type]

    @property
    def ready(self) -> int:
        return sum(line == "ready" for _, line in self.lines)

    def run(self) -> Ending:
        def observe() -> RunProgress:
            self.then()
            return RunProgress(started=frozenset(range(len(self.roles))))

        def show(role: str, lines: Sequence[str], whole: bool) -> None:
            self.lines.extend((role, line) for line in lines)

        self.target = OneGroup(self.roles)
        roles = tuple(JobRole(spec.name, spec.role, spec.rank) for spec in self.roles)
        config = Config(cluster=Cluster(workers=(WorkerSection(),)))
        with patch.object(run_hosts, "job_roles", lambda config: roles):
            hosts = ElasticHosts(config, new_folder(self.folder), self.target, NoEvents(), show, self.interrupts)
        self.supervisor = Supervisor(hosts, show, observe, self.interrupts, self.limits)
        assert hosts.prepare("0badcafe", "secret", None)
        try:
            return self.supervisor.run()
        finally:
            self.left_running = self.target.group.running
            hosts.finish()

    def interrupt_when_ready(self, times: int = 1) -> None:
        def then() -> None:
            if self.ready == len(self.roles) and not self.interrupts.count:
                self.interrupts.count, self.interrupts.first = times, "SIGINT"

        self.then = then

    def order(self) -> list[str]:
        return (self.folder / "order").read_text().split()


def test_an_orderly_stop_goes_from_workers_to_servers_to_the_scheduler(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for name in ("scheduler", "server-0", "worker-0", "worker-1", "arbitrator"):
        rig.role(name, OBEDIENT)
    rig.interrupt_when_ready()
    ending = rig.run()
    assert (ending.exit_code, ending.reason) == (130, "interrupted by SIGINT")
    order = rig.order()
    assert sorted(order[:2]) == ["worker-0", "worker-1"]
    assert order[2:] == ["server-0", "scheduler", "arbitrator"]


def test_a_second_signal_kills_without_waiting(tmp_path: Path) -> None:
    rig = Rig(tmp_path)  # its grace is longer than the time limit of this test
    rig.role("worker-0", STUBBORN)
    rig.role("server-0", STUBBORN)
    rig.interrupt_when_ready(times=2)
    assert rig.run().exit_code == 130


def test_after_the_grace_the_stubborn_are_killed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Limits(stop_grace_s=0.2))
    rig.role("worker-0", STUBBORN)
    rig.role("server-0", OBEDIENT)
    rig.interrupt_when_ready()
    assert rig.run().exit_code == 130
    assert rig.order() == ["server-0"]


def test_when_one_dies_the_others_get_only_the_short_grace(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Limits(stop_grace_s=1000, fail_grace_s=0.2))
    rig.role("server-0", STUBBORN)
    rig.role("worker-0", STUBBORN)
    rig.role("worker-1", "print('ready\\nlast words', flush=True); import os; os.kill(os.getpid(), 11)")
    ending = rig.run()
    assert ending.exit_code == 4
    assert ending.reason == "worker-1 was killed by SIGSEGV at iteration 0"
    assert rig.supervisor.last_lines("worker-1") == ("ready", "last words")


def test_a_lost_arbitrator_is_a_note_and_no_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.role("arbitrator", "import os; os._exit(3)")
    rig.role("worker-0", "import time; time.sleep(0.8)")
    ending = rig.run()
    assert (ending.exit_code, ending.notes) == (0, ("arbitrator ended with exit code 3 during the run",))


def test_a_role_that_closes_its_output_is_still_watched(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.role("worker-0", "import os, time; os.close(1); os.close(2); time.sleep(0.6); os._exit(7)")
    assert rig.run().reason == "worker-0 ended with exit code 7 at iteration 0"


def test_a_grandchild_that_keeps_the_pipe_open_delays_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    code = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); print('x')"
    rig.role("worker-0", code, OF_TEST=str(tmp_path))
    try:
        assert rig.run().exit_code == 0
        assert ("worker-0", "x") in rig.lines
    finally:
        for entry in os.listdir("/proc"):
            if entry.isdigit() and f"OF_TEST={tmp_path}\0".encode() in _environment(entry):
                os.kill(int(entry), signal.SIGKILL)


def test_if_one_role_cannot_be_started_those_that_were_are_stopped(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Limits(fail_grace_s=0.2))
    rig.role("scheduler", STUBBORN)
    rig.roles.append(RoleSpec("worker-0", "worker", ("/no/such/program",), {}, 0))
    with pytest.raises(run_hosts.HostRefused, match="worker-0: cannot start /no/such/program"):
        rig.run()
    assert rig.left_running == []


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
