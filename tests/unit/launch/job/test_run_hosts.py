"""The hosts of a run as one, with agents that the test plays: what the launcher sends, and what it makes of answers."""

from __future__ import annotations

import selectors
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, PeerLostError, TrainingError, UsageError
from dynamix_ps.launch.job.elastic_hosts import ElasticHosts
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.restarts import FIRST_WAIT_S, RestartBudget
from dynamix_ps.launch.messages.agent_messages import (
    Begin,
    CleanedUp,
    CleanUp,
    FilePart,
    ForCoordinator,
    FromAgent,
    Notice,
    Prepare,
    Prepared,
    RequestRefused,
    RoleEnded,
    RoleOutput,
    RunEvent,
    SetSpeeds,
    Signal,
    StartAgain,
    Started,
    ToAgent,
)
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver
from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.launch.targets.agent_link import Deliver
from dynamix_ps.run_record.requests import JOIN, LEAVE, request
from tests.unit.synthetic_run import new_folder

CLUSTER = {"hosts": {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}}, "workers": ({}, {})}
THERE = (0, 1)  # worker 2 comes and goes
CONFIG = resolved(Config.model_validate({"cluster": CLUSTER, "comm": "gloo", "mode": "off"}))


class PlayedAgent:
    """A link whose agent answers `Prepare` and `CleanUp` as told."""

    shares_run_folder, has_room = False, True
    lost = ""

    def __init__(self, host: str, deliver: Deliver, answers: list[FromAgent]) -> None:
        self.host, self._deliver, self._answers = host, deliver, answers
        self.sent: list[ToAgent] = []

    def say(self, message: FromAgent) -> None:
        self._deliver(self.host, message)

    def send(self, message: ToAgent) -> None:
        self.sent.append(message)
        for answer in self._answers if isinstance(message, Prepare) else ():
            self.say(answer)
        if isinstance(message, CleanUp):
            self.say(CleanedUp())

    def tick(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


class Rig:
    """A target and the events of a run."""

    def __init__(
        self, folder: Path, authority: Authority | None = None, config: Config = CONFIG, **answers: list[FromAgent]
    ) -> None:
        self.answers = {
            "a": [Prepared("10.0.0.1", 5, 6, "none")],
            "b": [Prepared("10.0.0.2", 0, 0, "quota")],
        } | answers
        self.agents: dict[str, PlayedAgent] = {}
        self.wont_admit = ""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.lines: list[tuple[str, str]] = []
        self.folder = new_folder(folder)
        self.interrupts = Interrupts()

        def show(role: str, lines: Sequence[str], whole: bool) -> None:
            self.lines.extend((role, line) for line in lines)

        self.hosts = ElasticHosts(config, self.folder, self, self, show, self.interrupts, authority)

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> PlayedAgent:
        self.agents[host] = PlayedAgent(host, deliver, self.answers[host])
        return self.agents[host]

    def admit(self, host: str) -> None:
        if self.wont_admit:
            raise UsageError(self.wont_admit)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def prepare(self, resume: Path | None = None) -> bool:
        return self.hosts.prepare("0badcafe", "secret", resume)


def test_all_hosts_get_ready_before_any_role_starts_at_the_addresses_they_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.prepare()
    (prepare,) = rig.agents["b"].sent
    assert isinstance(prepare, Prepare)
    assert (prepare.host, prepare.peers, prepare.token, prepare.run_dir) == ("b", ("10.0.0.1",), "secret", "")
    assert "10.0.0.2" in prepare.config
    assert "secret" not in prepare.config
    rig.hosts.begin()
    begin = Begin({"a": "10.0.0.1", "b": "10.0.0.2"}, 5, 6)
    assert [agent.sent[-1] for agent in rig.agents.values()] == [begin, begin]
    assert rig.hosts.emulation == "a: none; b: quota"
    rig.hosts.change((0.5, 1.0))
    assert rig.agents["b"].sent[-1] == SetSpeeds((0.5, 1.0))


class PlayedAuthority(Authority):
    def __init__(self) -> None:
        pass

    def issue(self, address: str) -> Certificates:
        return Certificates("authority", f"for {address}", f"key of {address}")


def test_every_host_gets_a_certificate_for_the_address_it_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path, PlayedAuthority())
    assert rig.prepare()
    rig.hosts.begin()
    for host, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        begin = rig.agents[host].sent[-1]
        assert isinstance(begin, Begin)
        made = {"authority": "authority", "certificate": f"for {address}", "key": f"key of {address}"}
        assert begin.certificates == made
        assert "key of" not in repr(begin)


def test_signals_go_to_the_host_of_a_role_that_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.prepare()
    rig.hosts.begin()
    rig.agents["a"].say(Started("worker-0"))
    rig.agents["b"].say(Started("worker-1"))
    rig.agents["b"].say(RoleEnded("worker-1", -9, 0.0))
    rig.hosts.signal(("worker-0", "worker-1"), 15)
    assert rig.agents["a"].sent[-1] == Signal(("worker-0",), 15)
    assert isinstance(rig.agents["b"].sent[-1], Begin)
    assert rig.hosts.roles["worker-1"].exit_code == -9


def test_what_agents_tell_stands_in_the_run_folder_and_says_where_it_comes_from(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.prepare()
    rig.agents["b"].say(RoleOutput("worker-1", False, b"one\ntw"))
    rig.agents["b"].say(RoleOutput("worker-1", True, b"o"))
    assert rig.lines == [("worker-1", "one"), ("worker-1", "two")]
    assert rig.folder.log_file("worker-1").read_bytes() == b"one\ntwo"
    rig.agents["b"].say(RunEvent("degraded", {"what": "network metrics", "detail": "no eBPF"}))
    assert rig.events == [("degraded", {"what": "network metrics", "detail": "host b: no eBPF"})]
    rig.agents["b"].say(FilePart("workers/worker-1.jsonl", 0, -1, b"{}\n"))
    assert rig.folder.worker_file(1).read_bytes() == b"{}\n"
    rig.agents["b"].say(FilePart("../escaped", 0, -1, b"x"))
    assert rig.hosts.problem is not None
    assert "'../escaped'" in rig.hosts.problem
    assert not (rig.folder.path.parent / "escaped").exists()


def test_a_refusal_ends_the_run_with_its_code_and_its_host(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b=[RequestRefused(3, "no cgroup")])
    with pytest.raises(DynamixError, match=r"^host b: no cgroup$") as caught:
        rig.prepare()
    assert caught.value.exit_code == 3
    rig.hosts.finish()
    assert [type(agent.sent[-1]) for agent in rig.agents.values()] == [CleanUp, Prepare]


def test_who_tells_of_a_role_that_is_not_on_its_host_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.prepare()
    rig.agents["b"].say(RoleEnded("worker-0", 1, 0.0))
    with pytest.raises(DynamixError, match="host b told of 'worker-0', which is none of its roles"):
        rig.hosts.check()
    assert rig.hosts.roles["worker-0"].exit_code is None


def test_two_hosts_with_one_address_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b=[Prepared("10.0.0.1", 0, 0, "")])
    with pytest.raises(
        EnvironmentNotReady, match=r"hosts\.b: by its routes its address is 10\.0\.0\.1, as that of a is"
    ):
        rig.prepare()


def test_a_host_that_is_told_to_end_is_a_signal_to_the_launcher(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b=[Notice("SIGTERM")])
    assert not rig.prepare()
    assert (rig.interrupts.count, rig.interrupts.first) == (1, "SIGTERM on host b")


def test_a_signal_to_the_launcher_ends_the_waiting_for_hosts(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b=[])
    rig.interrupts.count = 1
    assert not rig.prepare()


def test_a_lost_host_is_told_with_its_reason_and_nobody_waits_for_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.prepare()
    rig.agents["b"].lost = "its agent was killed by SIGKILL"
    assert rig.hosts.lost == {"b": "its agent was killed by SIGKILL"}
    rig.hosts.finish()
    assert rig.hosts.unconfirmed == ["b"]


def test_a_checkpoint_goes_to_every_host_before_the_roles_start(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    checkpoint = tmp_path / "last.pt"
    checkpoint.write_bytes(b"w" * (3 << 19))
    rig.prepare(checkpoint)
    prepare, *parts = rig.agents["b"].sent
    assert isinstance(prepare, Prepare)
    assert prepare.resume == "checkpoints/last.pt"
    assert [(part.path, part.offset, len(part.data)) for part in parts if isinstance(part, FilePart)] == [
        ("checkpoints/last.pt", 0, 1 << 20),
        ("checkpoints/last.pt", 1 << 20, 1 << 19),
    ]


def asked(rig: Rig) -> list[int]:
    """The workers of which the coordinator was told that they shall leave."""
    told = [message for message in rig.agents["a"].sent if isinstance(message, ForCoordinator)]
    requests = [message for message in told if message.request]
    counts = Counter(message.number for message in requests)
    for rank, count in counts.items():
        assert [message.request for message in requests if message.number == rank] == [*range(1, count + 1)]
    assert all(message.incarnation == rig.hosts.roles[f"worker-{message.number}"].incarnation for message in requests)
    return [message.number for message in requests]


def ended(rig: Rig) -> list[tuple[str, int, str]]:
    """The processes of which the coordinator was told that they have ended."""
    told = [message for message in rig.agents["a"].sent if isinstance(message, ForCoordinator)]
    return [(message.role, message.number, message.incarnation) for message in told if not message.request]


def elastic(folder: Path, least: int = 1, restarts: int = 0) -> Rig:
    """Host a has scheduler, server and worker 0; b and c have a worker each. All run."""
    hosts = {name: {"address": f"10.0.0.{number}"} for number, name in enumerate("abc", 1)}
    cluster = {"hosts": hosts, "workers": tuple({"host": name} for name in "abc"), "servers": ({"host": "a"},)}
    elastic = {"min_workers": least, "restarts": restarts}
    config = resolved(Config.model_validate({"cluster": cluster, "elastic": elastic}))
    ready: Any = {name: [Prepared(f"10.0.0.{number}", 5, 6, "none")] for number, name in enumerate("abc", 1)}
    rig = Rig(folder, PlayedAuthority(), config, **ready)
    assert rig.prepare()
    rig.hosts.begin()
    for name, state in rig.hosts.roles.items():
        rig.agents[state.role.host or ""].say(Started(name))
    return rig


def test_requests_of_a_user_reach_the_coordinator(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    for rank in (2, 7, 1, 2):  # there is no worker 7
        request(rig.folder, LEAVE, rank)
    rig.hosts.pass_requests_on()
    rig.hosts.pass_requests_on()
    assert asked(rig) == [2, 1, 2]


def test_the_workers_of_a_host_that_is_told_to_end_leave_and_the_host_is_not_lost(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    agent = rig.agents["c"]
    agent.say(Notice("SIGTERM"))
    assert asked(rig) == [2] and not rig.interrupts.count
    assert ("host_leaves", {"host": "c", "signal": "SIGTERM", "ranks": [2]}) in rig.events
    assert rig.hosts.given_up == {"c"}, "the job must not begin again on it"
    agent.say(RoleEnded("worker-2", 0, 0.0))
    assert isinstance(agent.sent[-1], CleanUp)
    agent.lost = "its agent ended"
    assert not rig.hosts.lost


def test_a_host_on_which_all_has_ended_may_be_told_to_end(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    agent = rig.agents["c"]
    agent.say(RoleEnded("worker-2", 0, 0.0))
    agent.say(Notice("SIGTERM"))
    assert not asked(rig) and not rig.interrupts.count, "the others do not need it"
    assert isinstance(agent.sent[-1], CleanUp)
    assert ("host_leaves", {"host": "c", "signal": "SIGTERM", "ranks": []}) in rig.events


def test_a_host_that_the_others_need_ends_the_run(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    rig.agents["a"].say(Notice("SIGTERM"))
    assert not asked(rig) and rig.interrupts.first == "SIGTERM on host a"


def test_where_too_few_workers_would_stay_the_notice_ends_the_run(tmp_path: Path) -> None:
    rig = elastic(tmp_path, least=2)
    rig.agents["b"].say(Notice("SIGTERM"))
    assert asked(rig) == [1] and not rig.interrupts.count
    rig.agents["c"].say(Notice("SIGTERM"))
    assert asked(rig) == [1] and rig.interrupts.first == "SIGTERM on host c", "worker 0 alone is too few"


def test_a_lost_worker_is_started_again_on_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=2)
    agent, roles = rig.agents["c"], rig.hosts.roles
    agent.say(RoleOutput("worker-2", False, b"first\n"))
    for starts in (1, 2):
        agent.say(RoleOutput("worker-2", True, b""))
        agent.say(RoleEnded("worker-2", -9, 0.0))
        assert (roles["worker-2"].exit_code, roles["worker-2"].running) == (-9, False)
        rig.hosts.restart(THERE)
        assert agent.sent[-1] == StartAgain("worker-2", starts)
        assert ("role_restarted", {"role": "worker-2", "restarts": starts}) in rig.events
        agent.say(Started("worker-2"))
        assert roles["worker-2"].running
        agent.say(RoleOutput("worker-2", False, b"again\n"))
    agent.say(RoleEnded("worker-2", -9, 0.0))
    sent = len(agent.sent)
    rig.hosts.restart(THERE)
    assert len(agent.sent) == sent, "not more often"
    assert rig.folder.log_file("worker-2").read_text() == "first\nagain\nagain\n", "one log for all starts"


def test_who_cannot_enter_because_others_are_gone_is_started_again_without_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=1)
    agent, told = rig.agents["c"], ("kept_out", {"role": "worker-2"})

    def end(exit_code: int) -> ToAgent:
        """What the host is told then."""
        agent.say(Started("worker-2"))
        agent.say(RoleEnded("worker-2", exit_code, 0.0))
        rig.hosts.restart(THERE)
        return agent.sent[-1]

    assert end(-9) == StartAgain("worker-2", 1)
    for starts in (2, 3):
        assert end(PeerLostError.exit_code) == StartAgain("worker-2", starts)
        assert rig.events.count(told) == starts - 1
    rig.hosts.restart((*THERE, 2))
    rig.hosts.restart(THERE)  # it is lost, and hears it later
    assert end(PeerLostError.exit_code) == StartAgain("worker-2", 3), "it had entered: that counts"
    assert rig.events.count(told) == 2


@pytest.mark.parametrize(
    ("starts", "exit_code"),
    [(0, PeerLostError.exit_code), (1, TrainingError.exit_code), (1, -9)],
    ids=["it was there from the beginning", "by its own fault", "killed"],
)
def test_other_ends_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: int, exit_code: int) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=starts)
    for code in [-9] * starts + [exit_code]:
        rig.agents["c"].say(RoleEnded("worker-2", code, 0.0))
        rig.hosts.restart(THERE)
    started = [message.starts for message in rig.agents["c"].sent if isinstance(message, StartAgain)]
    assert started == list(range(1, starts + 1))
    assert not any(kind == "kept_out" for kind, _ in rig.events)


def test_a_lost_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=1)
    assert rig.hosts.roles["server-0"].incarnation == "start-0"
    rig.agents["a"].say(RoleEnded("server-0", -9, 0.0))
    rig.hosts.restart(THERE)
    assert rig.agents["a"].sent[-1] == StartAgain("server-0", 1)
    assert rig.hosts.roles["server-0"].incarnation == "start-1"


def test_a_user_has_a_server_started_again(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    rig.agents["a"].say(RoleEnded("server-0", -9, 0.0))
    request(rig.folder, LEAVE, 0, "server")
    request(rig.folder, JOIN, 0, "server")
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    assert rig.agents["a"].sent[-1] == StartAgain("server-0", 1) and not asked(rig)


def test_who_ends_in_order_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=2)
    rig.agents["c"].say(RoleEnded("worker-2", 0, 0.0))
    rig.agents["a"].say(RoleEnded("scheduler", 0, 0.0))
    rig.hosts.restart(THERE)
    rig.hosts.restart_scheduler()
    assert not started_again(rig) and not rig.hosts.awaits_scheduler


def started_again(rig: Rig) -> list[StartAgain]:
    return [message for agent in rig.agents.values() for message in agent.sent if isinstance(message, StartAgain)]


def test_a_lost_scheduler_is_started_again_while_it_is_needed_and_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dynamix_ps.launch.job.elastic_hosts.RestartBudget", lambda: RestartBudget(2, first_delay_s=0.0)
    )
    rig = elastic(tmp_path)
    for starts in (1, 2):
        rig.agents["a"].say(RoleEnded("scheduler", -9, 0.0))
        assert rig.hosts.awaits_scheduler
        rig.hosts.restart_scheduler()
        assert started_again(rig)[-1] == StartAgain("scheduler", starts) and not rig.hosts.awaits_scheduler
        rig.agents["a"].say(Started("scheduler"))
    assert ("scheduler_exit", {"how": "was killed by SIGKILL", "restart_in_s": 0.0}) in rig.events
    rig.agents["a"].say(RoleEnded("scheduler", -9, 0.0))
    rig.hosts.restart_scheduler()
    assert len(started_again(rig)) == 2 and not rig.hosts.awaits_scheduler
    assert ("scheduler_exit", {"how": "was killed by SIGKILL", "restart_in_s": None}) in rig.events


def test_a_scheduler_that_is_lost_after_all_others_have_ended_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.elastic_hosts.RestartBudget", lambda: RestartBudget(first_delay_s=0.0))
    rig = elastic(tmp_path)
    for name, state in rig.hosts.roles.items():
        if name != "scheduler":
            rig.agents[state.role.host].say(RoleEnded(name, 0, 0.0))
    rig.agents["a"].say(RoleEnded("scheduler", -9, 0.0))
    rig.hosts.restart_scheduler()
    assert rig.hosts.awaits_scheduler and not started_again(rig)


def test_when_the_launcher_ends_the_job_nobody_is_lost_and_sigterm_is_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=2)
    rig.hosts.end_job()
    assert rig.events == [("stopping", {})]
    assert rig.folder.end_mark.exists()
    mark = FilePart("workers/job-ends", 0, 0, b"")
    assert all(agent.sent[-1] == mark for agent in rig.agents.values()), "before any signal"
    other = new_folder(tmp_path / "other")
    FolderReceiver(other.path).take(mark)
    assert other.end_mark.exists()

    for name, host in (("worker-2", "c"), ("server-0", "a"), ("scheduler", "a")):
        rig.agents[host].say(RoleEnded(name, -15, 0.0))
    rig.hosts.restart(THERE)
    rig.hosts.restart_scheduler()
    assert rig.events == [("stopping", {})] and not started_again(rig)
    told = [message for message in rig.agents["a"].sent if isinstance(message, ForCoordinator)]
    assert [one.role for one in told] == ["worker", "server"], "workers that still train do not wait for them"


def test_the_end_of_a_job_whose_workers_have_ended_is_no_stop(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    for rank, host in enumerate("abc"):
        rig.agents[host].say(RoleEnded(f"worker-{rank}", 0, 0.0))
    rig.hosts.end_job()
    rig.agents["a"].say(RoleEnded("scheduler", -15, 0.0))
    assert rig.events == [] and not rig.folder.end_mark.exists()


def test_a_user_has_a_worker_started_again_that_has_ended(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    agent = rig.agents["c"]
    for ended in (False, True):
        if ended:
            agent.say(RoleEnded("worker-2", 0, 0.0))
        request(rig.folder, JOIN, 2)
        request(rig.folder, JOIN, 7)
        rig.hosts.pass_requests_on()
        rig.hosts.restart(THERE)
        assert (agent.sent[-1] == StartAgain("worker-2", 1)) is ended, "not one that runs"


def test_a_host_that_has_left_starts_nothing(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    agent = rig.agents["c"]
    agent.say(Notice("SIGTERM"))
    agent.say(RoleEnded("worker-2", 0, 0.0))
    request(rig.folder, JOIN, 2)
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    assert isinstance(agent.sent[-1], CleanUp)


def lose(rig: Rig, host: str) -> None:
    rig.agents[host].lost = "timed out"
    assert rig.hosts.lost == {host: "timed out"}
    rig.hosts.go_on_without(host)
    assert not rig.hosts.lost and rig.hosts.given_up == {host}


def test_what_ran_on_a_lost_host_is_lost_and_the_job_goes_on(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    rig.agents["c"].say(RoleOutput("worker-2", False, b"last wor"))
    lose(rig, "c")
    state = rig.hosts.roles["worker-2"]
    assert (state.exit_code, state.lost_with) == (-9, "c") and ended(rig) == [("worker", 2, "start-0")]
    assert ("host_lost", {"host": "c", "reason": "timed out", "roles": ["worker-2"]}) in rig.events
    assert rig.lines == [("worker-2", "last wor")], "nothing follows"
    sent = len(rig.agents["c"].sent)
    rig.hosts.change((0.5, 1.0, 1.0))
    assert len(rig.agents["c"].sent) == sent and rig.agents["b"].sent[-1] == SetSpeeds((0.5, 1.0, 1.0))
    rig.hosts.finish()
    assert rig.hosts.unconfirmed == ["c"]


def test_a_lost_host_is_reached_again_and_starts_what_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=1)
    rig.hosts.change((0.5, 1.0, 1.0))
    rig.agents["c"].say(FilePart("workers/worker-2.jsonl", 0, -1, b'{"kind": "a"}\n'))
    before = rig.agents["c"]
    lose(rig, "c")
    rig.answers["c"] = []
    rig.hosts.restart(THERE)
    agent = rig.agents["c"]
    assert agent is not before
    (prepare,) = agent.sent
    assert isinstance(prepare, Prepare) and (prepare.host, prepare.run_id) == ("c", "0badcafe")
    request(rig.folder, JOIN, 2)
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    assert agent.sent == [prepare], "it is not ready yet"
    agent.say(Prepared("10.0.0.9", 0, 0, "none"))
    rig.hosts.restart(THERE)
    made = {"authority": "authority", "certificate": "for 10.0.0.9", "key": "key of 10.0.0.9"}
    begin = Begin({"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.9"}, 5, 6, made, late=True)
    assert agent.sent[1:] == [begin, SetSpeeds((0.5, 1.0, 1.0)), StartAgain("worker-2", 1)]
    agent.say(Started("worker-2"))
    agent.say(FilePart("workers/worker-2.jsonl", 0, -1, b'{"kind": "b"}\n'))
    assert rig.folder.worker_file(2).read_bytes() == b'{"kind": "a"}\n{"kind": "b"}\n'
    assert rig.hosts.roles["worker-2"].running
    lose(rig, "c")
    assert ended(rig) == [("worker", 2, "start-0"), ("worker", 2, "start-1")]


def test_a_host_that_is_not_back_is_told_and_reached_again_when_a_role_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = elastic(tmp_path, restarts=2)
    lose(rig, "c")
    rig.answers["c"] = [RequestRefused(3, "no cgroup")]
    rig.hosts.restart(THERE)
    told = {"host": "c", "reason": "no cgroup", "roles": ["worker-2"]}
    assert rig.events[-1] == ("host_not_back", told)
    rig.hosts.check()
    assert not rig.hosts.lost
    rig.answers["c"] = []
    rig.hosts.restart(THERE)
    rig.agents["c"].lost = "timed out"
    rig.hosts.restart(THERE)
    assert rig.events[-1] == ("host_not_back", {**told, "reason": "timed out"})
    reached = rig.agents["c"]
    rig.hosts.restart(THERE)
    assert rig.agents["c"] is reached, "not more often"
    request(rig.folder, JOIN, 2)
    rig.answers["c"] = [Prepared("10.0.0.3", 0, 0, "none")]
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    assert rig.agents["c"].sent[-1] == StartAgain("worker-2", 3)


def test_a_host_that_is_not_back_is_reached_no_more_often_for_several_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are due at different times: one was lost before."""
    now_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: now_s, time=lambda: now_s)
    for module in ("elastic_hosts", "arrivals"):
        monkeypatch.setattr(f"dynamix_ps.launch.job.{module}.time", clock)
    hosts = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2", "slots": 2}}
    cluster = {"hosts": hosts, "workers": tuple({"host": name} for name in "abb"), "servers": ({"host": "a"},)}
    elastic = {"min_workers": 1, "restarts": 6}
    rig = Rig(tmp_path, None, resolved(Config.model_validate({"cluster": cluster, "elastic": elastic})))
    assert rig.prepare()
    rig.hosts.begin()
    for name, state in rig.hosts.roles.items():
        rig.agents[state.role.host or ""].say(Started(name))
    rig.agents["b"].say(RoleEnded("worker-2", -9, 0.0))
    now_s = FIRST_WAIT_S
    rig.hosts.restart((0,))
    rig.agents["b"].say(Started("worker-2"))
    lose(rig, "b")
    rig.answers["b"] = [RequestRefused(3, "no cgroup")]
    reached_s, began_s = [], now_s
    while now_s < began_s + 31.0:
        before = rig.agents["b"]
        rig.hosts.restart((0,))
        if rig.agents["b"] is not before:
            reached_s.append(now_s - began_s)
        now_s += 1.0
    assert reached_s == [1.0, 3.0, 7.0, 15.0], "each wait is twice the one before"


def test_a_host_that_does_not_get_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.run_hosts.PREPARE_S", -1.0)
    rig = elastic(tmp_path)
    lose(rig, "c")
    rig.answers["c"] = []
    request(rig.folder, JOIN, 2)
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    kind, told = rig.events[-1]
    assert kind == "host_not_back" and told["reason"].startswith("not ready within")


def test_a_host_that_has_left_is_reached_again_when_a_user_wants_its_worker(tmp_path: Path) -> None:
    rig = elastic(tmp_path)
    rig.agents["c"].say(Notice("SIGTERM"))
    rig.agents["c"].say(RoleEnded("worker-2", 0, 0.0))
    rig.agents["c"].lost = "its agent ended with exit code 0"
    request(rig.folder, JOIN, 2)
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    assert rig.agents["c"].sent[-1] == StartAgain("worker-2", 1) and not rig.hosts.lost


def test_a_worker_that_comes_later_is_started_when_a_user_wants_it(tmp_path: Path) -> None:
    hosts = {name: {"address": f"10.0.0.{number}"} for number, name in enumerate("ab", 1)}
    cluster = {"hosts": hosts, "workers": ({"host": "a"},), "servers": ({"host": "a"},)}
    elastic = {"min_workers": 1, "max_workers": 2}
    rig = Rig(tmp_path, None, resolved(Config.model_validate({"cluster": cluster, "elastic": elastic})))
    assert rig.prepare()
    rig.hosts.begin()
    later = rig.hosts.roles["worker-1"]
    assert (later.absent, later.role.host) == (True, "b"), "the first host with a free slot"
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)
    agent = rig.agents["b"]
    assert not any(isinstance(message, StartAgain) for message in agent.sent)
    for _ in range(2):  # whoever waits for it asks again and again
        request(rig.folder, JOIN, 1)
        rig.hosts.pass_requests_on()
        rig.hosts.restart(THERE)
    assert [message for message in agent.sent if isinstance(message, StartAgain)] == [StartAgain("worker-1", 1)]
    assert not rig.hosts.roles["worker-1"].absent
