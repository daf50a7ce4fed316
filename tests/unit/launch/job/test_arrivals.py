"""Hosts that the cluster file does not name and a user wants in a job that goes on, with agents that the test plays."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config.load import load_config
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.messages.agent_messages import (
    Begin,
    ForCoordinator,
    Hello,
    Inspect,
    Prepare,
    Prepared,
    Reach,
    Reached,
    RequestRefused,
    RoleEnded,
    RoleOutput,
    StartAgain,
    Started,
)
from dynamix_ps.launch.preflight.inspection import HostAnswer, HostReport
from dynamix_ps.launch.preflight.late_host import Fit
from dynamix_ps.run_record.requests import JOIN, request
from tests.launching import wait_for
from tests.unit.launch.job.test_run_hosts import PlayedAuthority, Rig, lose
from tests.unit.launch.preflight.test_host_checks import EXPECTED, FACTS

ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "new": "10.0.0.9", "other": "10.0.0.8"}
THERE = (0, 1)


def job(folder: Path, restarts: int = 0, **keys: Any) -> Rig:
    """Workers 0 and 1 on hosts a and b, room for two more, and no host for them. Host new is ready when it is asked."""
    hosts = {name: {"address": ADDRESSES[name]} for name in "ab"}
    cluster = {"hosts": hosts, "workers": ({}, {}), "servers": ({"host": "a"},)}
    elastic = {"min_workers": 1, "max_workers": 4, "restarts": restarts}
    keys |= {"command": ("python", "train.py")}
    config = resolved(Config.model_validate({"cluster": cluster, "elastic": elastic, **keys}))
    ready: Any = {name: [Prepared(address, 5, 6, "none")] for name, address in ADDRESSES.items()}
    rig = Rig(folder, PlayedAuthority(), config, **ready)
    answers = {name: HostAnswer(replace(FACTS, address=ADDRESSES[name]), 0.0, 0.0) for name in "ab"}
    rig.hosts.compare_later(Fit(HostReport(answers, {}, ()), EXPECTED))
    assert rig.prepare()
    rig.hosts.begin()
    for name, state in rig.hosts.roles.items():
        if state.role.host:
            rig.agents[state.role.host].say(Started(name))
    return rig


def ask(rig: Rig, host: str = "new", rank: int = 2, slots: int = 1) -> None:
    request(rig.folder, JOIN, rank, host=host, slots=slots)
    rig.hosts.pass_requests_on()
    rig.hosts.restart(THERE)


def answer(rig: Rig, host: str = "new", **facts: Any) -> None:
    """What a new host says of itself."""
    rig.agents[host].say(Hello(4, "1", "3", host, 7))
    rig.agents[host].say(replace(FACTS, **{"address": ADDRESSES[host], "clock_s": time.time(), **facts}))
    rig.hosts.restart(THERE)


def try_links(rig: Rig, *closed: str) -> None:
    """Every host tells of its links."""
    for name, agent in rig.agents.items():
        problem = "timed out" if name in closed else ""
        for message in (sent for sent in agent.sent if isinstance(sent, Reach)):
            agent.say(Reached((problem,) * len(message.ports), (0.0,), (0.0,)))
    rig.hosts.restart(THERE)


def started(rig: Rig) -> list[StartAgain]:
    return [sent for agent in rig.agents.values() for sent in agent.sent if isinstance(sent, StartAgain)]


def placed_by(prepare: Prepare, folder: Path) -> tuple[str | None, ...]:
    """The host of every worker, as an agent is told."""
    file = folder / "told.yaml"
    file.write_text(prepare.config)
    return role_hosts(load_config(file).cluster).workers


def refusal(rig: Rig) -> str:
    """Why the host was refused, which is the last event; the worker is where it was."""
    kind, told = rig.events[-1]
    assert (kind, told["roles"]) == ("host_refused", ["worker-2"]), rig.events
    assert rig.hosts.roles["worker-2"].role.host == "" and not started(rig)
    rig.hosts.check()
    assert not rig.hosts.lost
    return str(told["reason"])


def test_a_worker_starts_on_a_host_that_is_new_once_it_is_checked(tmp_path: Path) -> None:
    rig = job(tmp_path)
    assert rig.hosts.names == ("a", "b"), "nothing is reached for places without a host"
    ask(rig)
    agent = rig.agents["new"]
    (question,) = agent.sent
    assert isinstance(question, Inspect) and question.peers == ("10.0.0.1", "10.0.0.2")
    answer(rig)
    assert agent.sent[1:] == [Reach(("10.0.0.1",), (6,), 0.0)], "it must reach the arbitrator"
    assert [rig.agents[name].sent[-1] for name in "ab"] == [Reach(("10.0.0.9",), (41000,), 0.0)] * 2
    ask(rig)  # whoever waits for it asks again and again
    assert len(agent.sent) == 2, "its links are not known yet"
    try_links(rig)
    prepare = agent.sent[2]
    assert isinstance(prepare, Prepare) and (prepare.host, prepare.run_id) == ("new", "0badcafe")
    assert placed_by(prepare, tmp_path) == ("a", "b", "new", None)
    rig.hosts.restart(THERE)
    made = {"authority": "authority", "certificate": "for 10.0.0.9", "key": "key of 10.0.0.9"}
    addresses = {name: ADDRESSES[name] for name in ("a", "b", "new")}
    assert agent.sent[3:] == [Begin(addresses, 5, 6, made, late=True), StartAgain("worker-2", 1)]
    assert ("host_joined", {"host": "new", "address": "10.0.0.9", "workers": [2]}) in rig.events
    agent.say(Started("worker-2"))
    assert rig.hosts.roles["worker-2"].running and rig.hosts.names == ("a", "b", "new")
    agent.say(RoleOutput("worker-2", False, b"hello\n"))
    assert rig.lines[-1] == ("worker-2", "hello")
    lose(rig, "new")
    assert rig.agents["a"].sent[-1] == ForCoordinator("worker", 2, "start-1"), "as any other host"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"code": {**FACTS.code, "train.py": "other"}}, "train.py differs from what the launcher has; copy it there"),
        (
            {"package": "other"},
            "its files of dynamix-ps are other, those of the launcher 01234567; install one version",
        ),
        ({"cwd_problem": "has no folder /job"}, "has no folder /job; have the job's files under the same path"),
        ({"versions": {**FACTS.versions, "torch": "1.0"}}, "has torch 1.0, expected 2.9.1 as on a, b; install one"),
        ({"problem": "no route"}, "no route"),
    ],
    ids=["code", "package", "folder", "torch", "address"],
)
def test_a_host_that_does_not_fit_is_refused(tmp_path: Path, facts: dict[str, Any], reason: str) -> None:
    rig = job(tmp_path)
    ask(rig)
    answer(rig, **facts)
    try_links(rig)
    assert refusal(rig).startswith(reason)
    told = len(rig.agents["new"].sent)
    ask(rig, "other")
    answer(rig, "other")
    assert len(rig.agents["new"].sent) == told, "nobody asks it any more"


@pytest.mark.parametrize(
    ("closed", "reason"),
    [
        ("new", "does not reach a at 10.0.0.1 port 6 (timed out); open all ports between the hosts"),
        ("b", "host b: does not reach new at 10.0.0.9 port 41000 (timed out); open all ports between the hosts"),
    ],
)
def test_a_link_that_is_closed_is_named(tmp_path: Path, closed: str, reason: str) -> None:
    rig = job(tmp_path)
    ask(rig)
    answer(rig)
    try_links(rig, closed)
    assert refusal(rig) == reason


def test_a_machine_that_the_job_has_is_no_new_host(tmp_path: Path) -> None:
    rig = job(tmp_path)
    ask(rig)
    answer(rig, address="10.0.0.2")
    assert refusal(rig) == "its address is 10.0.0.2, as that of b: it is the same machine"


def test_a_host_that_is_not_reached_is_refused_and_may_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = job(tmp_path)
    ask(rig)
    rig.agents["new"].lost = "ssh ended"
    rig.hosts.restart(THERE)
    assert refusal(rig) == "ssh ended" and "new" not in rig.hosts.unconfirmed
    first, events = rig.agents["new"], len(rig.events)
    ask(rig)
    assert rig.agents["new"] is first and len(rig.events) == events, "this request was under way"
    monkeypatch.setattr("dynamix_ps.launch.job.arrivals._ANSWERED_S", 0.0)
    ask(rig)
    assert rig.agents["new"] is not first
    rig.agents["new"].say(RequestRefused(3, "no memory"))
    assert refusal(rig) == "no memory"
    ask(rig, rank=2)
    answer(rig)
    try_links(rig)
    rig.hosts.restart(THERE)
    assert started(rig) == [StartAgain("worker-2", 3)]


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("b", "it has worker-1 of this job already, and gets no further roles; name another"),
        ("a b", "--host a b: cluster.hosts.a b: is no name or address of a host"),
        ("own", "--host own: cluster.hosts.own: has another meaning in cluster.servers"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, host: str, reason: str) -> None:
    rig = job(tmp_path)
    ask(rig, host)
    assert refusal(rig).startswith(reason)


@pytest.mark.parametrize("problem", ["", "host new: rsync ended with exit code 12"])
def test_the_code_goes_to_a_new_host_before_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    may_end = threading.Event()

    def send_code(config: Config, target: Any, hosts: list[str], environ: Any, stopped: Any) -> bool:
        assert hosts == ["new"]
        may_end.wait(30.0)
        if problem:
            raise EnvironmentNotReady(problem)
        return True

    monkeypatch.setattr("dynamix_ps.launch.job.code_sync.send_code", send_code)
    rig = job(tmp_path, sync="rsync")
    ask(rig)
    rig.hosts.restart(THERE)
    assert "new" not in rig.agents and not rig.hosts.lost
    before = len(rig.events)
    may_end.set()
    wait_for(lambda: rig.hosts.restart(THERE) or "new" in rig.agents or len(rig.events) > before, "the copy")
    if problem:
        assert refusal(rig) == problem
    else:
        assert isinstance(rig.agents["new"].sent[0], Inspect)


def test_jobs_that_no_host_joins_say_why(tmp_path: Path) -> None:
    rig = job(tmp_path)
    rig.wont_admit = "the hosts of the job are those that Slurm has given it"
    ask(rig)
    assert refusal(rig) == rig.wont_admit and "new" not in rig.agents


def test_a_worker_that_has_no_host_waits_until_one_is_named(tmp_path: Path) -> None:
    rig = job(tmp_path)
    ask(rig, host="")
    assert not started(rig) and rig.hosts.names == ("a", "b")


def hosts_of(rig: Rig) -> list[str]:
    """The host of every worker."""
    return [rig.hosts.roles[f"worker-{rank}"].role.host for rank in range(4)]


def test_a_host_with_more_slots_takes_further_workers_that_have_no_host(tmp_path: Path) -> None:
    rig = job(tmp_path)
    ask(rig, rank=3, slots=2)
    answer(rig, package="other")
    try_links(rig)
    assert hosts_of(rig) == ["a", "b", "", ""], "it is refused with all of them"
    ask(rig, "other", rank=3, slots=2)
    answer(rig, "other")
    try_links(rig)
    rig.hosts.restart(THERE)
    assert hosts_of(rig) == ["a", "b", "other", "other"]
    assert rig.agents["other"].sent[-1] == StartAgain("worker-3", 2), "the other one waits until it is asked for"
    assert ("host_joined", {"host": "other", "address": "10.0.0.8", "workers": [3, 2]}) in rig.events
    ask(rig, host="")
    assert rig.agents["other"].sent[-1] == StartAgain("worker-2", 1)


def test_of_a_host_that_was_refused_nothing_is_left(tmp_path: Path) -> None:
    rig = job(tmp_path)
    ask(rig, slots=2)
    answer(rig, problem="no route")
    ask(rig, "other")
    answer(rig, "other")
    try_links(rig)
    prepare = rig.agents["other"].sent[2]
    assert isinstance(prepare, Prepare) and prepare.peers == ("10.0.0.1", "10.0.0.2")
    assert placed_by(prepare, tmp_path) == ("a", "b", "other", None)


def test_a_restart_that_was_due_on_a_lost_host_is_due_on_the_one_that_takes_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamix_ps.launch.job.restarts.FIRST_WAIT_S", 0.0)
    rig = job(tmp_path, restarts=2)
    lose(rig, "b")
    rig.answers["b"] = []
    rig.hosts.restart(THERE)
    assert isinstance(rig.agents["b"].sent[0], Prepare), "it is being reached"
    ask(rig, "other", rank=2, slots=2)
    assert hosts_of(rig) == ["a", "other", "other", ""]
    rig.agents["other"].lost = "ssh ended"
    rig.hosts.restart(THERE)
    rig.hosts.restart(THERE)
    assert hosts_of(rig) == ["a", "b", "", ""]
    ask(rig, rank=2, slots=2)
    answer(rig)
    try_links(rig)
    rig.hosts.restart(THERE)
    assert sorted(sent.role for sent in started(rig)) == ["worker-1", "worker-2"]


def test_a_host_may_take_all_workers_of_a_lost_one(tmp_path: Path) -> None:
    rig = job(tmp_path)
    lose(rig, "b")
    ask(rig, rank=2, slots=4)
    assert hosts_of(rig) == ["a", "new", "new", "new"], "worker 0 runs"


def test_a_worker_of_a_lost_host_starts_on_another_one(tmp_path: Path) -> None:
    rig = job(tmp_path)
    ask(rig, rank=1)
    assert "new" not in rig.agents, "it runs"
    lose(rig, "b")
    ask(rig, rank=1)
    answer(rig)
    assert not any(isinstance(sent, Reach) for sent in rig.agents["b"].sent)
    try_links(rig)
    rig.hosts.restart(THERE)
    assert rig.agents["new"].sent[-1] == StartAgain("worker-1", 1)
    assert rig.hosts.roles["worker-1"].role.host == "new"
    rig.agents["new"].say(Started("worker-1"))
    rig.agents["new"].say(RoleEnded("worker-1", 0, 0.0))
    rig.hosts.check()
