"""Which way leads to the hosts of a job."""

from __future__ import annotations

import selectors
from collections.abc import Mapping
from typing import Any

import pytest

from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config, Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.roles.placement import ThisMachine
from dynamix_ps.launch.targets import choice as targets
from dynamix_ps.launch.targets import command_link
from dynamix_ps.launch.targets.agent_link import OwnProcess
from dynamix_ps.launch.targets.command_link import ON_OWN_MACHINE, AgentCommand, Commands


def target(hosts: Mapping[str, Any], workers: int) -> Any:
    cluster = {"hosts": hosts, "workers": ({},) * workers}
    return targets.target_of(resolved(Config.model_validate({"cluster": cluster})), ThisMachine())


def own(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let this machine have these addresses and no other."""
    monkeypatch.setattr(targets, "bind_error", lambda address, port: None if address in addresses else OSError())


@pytest.mark.parametrize("hosts", [{}, {"here": {"address": "127.0.0.1"}}, {"localhost": {}}])
def test_on_one_machine_the_launcher_does_all(hosts: Mapping[str, Any]) -> None:
    assert isinstance(target(hosts, 1), OwnProcess)


def test_hosts_without_roles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch)
    assert isinstance(target({"localhost": {}, "b": {"address": "192.0.2.1", "slots": 0}}, 1), OwnProcess)


def test_other_machines_are_reached_by_ssh_and_the_own_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, AgentCommand] = {}
    own(monkeypatch, "192.0.2.1")
    monkeypatch.setattr(
        targets, "ssh_command", lambda host, address, environ: AgentCommand(("ssh", host, str(address)))
    )
    monkeypatch.setattr(command_link, "CommandLink", lambda host, command, *rest: commands.update({host: command}))
    way = target({"a": {"address": "192.0.2.1"}, "b": {"address": "192.0.2.2"}, "c.invalid": {}}, 3)
    for host in ("a", "b", "c.invalid"):
        way.connect(host, selectors.DefaultSelector(), print)
    assert commands["a"] is ON_OWN_MACHINE
    assert (commands["b"].argv, commands["c.invalid"].argv) == (("ssh", "b", "192.0.2.2"), ("ssh", "c.invalid", "None"))


def test_two_names_of_this_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch, "192.0.2.1", "192.0.2.2")
    with pytest.raises(
        EnvironmentNotReady, match=r"a \(192.0.2.1\) and b \(192.0.2.2\) are this machine; write one host"
    ):
        target({"a": {"address": "192.0.2.1"}, "b": {"address": "192.0.2.2"}}, 2)


class Given:
    """What a batch system might have given this job."""

    name = "batch job 1"
    starts_own_agent = False
    devices: tuple[int, ...] | None = None

    def __init__(self, *hosts: str) -> None:
        self._hosts = hosts

    def hosts(self, workers: int, cpus: int = 1) -> dict[str, Host]:
        return {host: Host(slots=workers, devices=self.devices) for host in self._hosts}

    def reaches(self, host: str) -> bool:
        return host in self._hosts

    def agent_command(self, host: str) -> AgentCommand:
        return AgentCommand(("srun", host))


def test_hosts_of_a_batch_job_are_reached_by_its_system_and_others_by_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, AgentCommand] = {}
    own(monkeypatch, "a")
    monkeypatch.setattr(targets, "_systems", lambda: iter([lambda environ: None, lambda environ: Given("a", "b")]))
    monkeypatch.setattr(targets, "ssh_command", lambda host, *rest: AgentCommand(("ssh", host)))
    monkeypatch.setattr(command_link, "CommandLink", lambda host, command, *rest: commands.update({host: command}))
    way = target({"a": {}, "b": {}, "c": {}}, 3)
    for host in ("a", "b", "c"):
        way.connect(host, selectors.DefaultSelector(), print)
    assert commands["a"] is ON_OWN_MACHINE
    assert (commands["b"].argv, commands["c"].argv) == (("srun", "b"), ("ssh", "c"))


def test_hosts_that_were_asked_for_before_are_reached_by_the_system_that_has_given_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own(monkeypatch, "a")
    monkeypatch.setattr(targets, "allocation", lambda environ: Given())
    monkeypatch.setattr(Given, "starts_own_agent", True)
    config = resolved(Config.model_validate({"cluster": {"hosts": {"a": {}, "b": {}}, "workers": ({}, {})}}))
    way = targets.target_of(config, ThisMachine(), Given("a", "b"))
    assert isinstance(way, Commands)
    assert [way.command_of(host).argv for host in ("a", "b")] == [("srun", "a"), ("srun", "b")]


def test_a_single_given_host_that_is_this_machine_is_the_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch, "a")
    config = Config.model_validate({"cluster": {"workers": ({}, {})}})
    assert targets.allocated_hosts(Given("a"), config) == {}
    assert list(targets.allocated_hosts(Given("b"), config)) == ["b"]
    assert list(targets.allocated_hosts(Given("a", "b"), config)) == ["a", "b"]
    monkeypatch.setattr(Given, "devices", (1, 3))
    assert targets.allocated_hosts(Given("a"), config) == {"a": Host(slots=2, devices=(1, 3))}


def test_a_host_may_join_a_job_whose_hosts_are_reached_by_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch, "192.0.2.1")
    monkeypatch.setattr(
        targets, "ssh_command", lambda host, address, environ: AgentCommand(("ssh", host, str(address)))
    )
    way = target({"a": {"address": "192.0.2.1"}, "b": {"address": "192.0.2.2"}, "idle": {"address": "192.0.2.3"}}, 2)
    for host in ("new", "idle", "new"):
        way.admit(host)
    assert way.command_of("new").argv == ("ssh", "new", "None")
    assert way.command_of("idle").argv == ("ssh", "idle", "192.0.2.3")


def test_no_host_joins_a_job_on_one_machine_or_of_a_batch_system(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch, "a")
    for there in ("a", "b"):
        with pytest.raises(UsageError, match="the job is on one host alone"):
            target({there: {}}, 1).admit("c")
    cluster = {"hosts": {"a": {}}, "workers": ({},)}
    job = {"cluster": cluster, "elastic": {"min_workers": 1, "max_workers": 2}}
    way = targets.target_of(resolved(Config.model_validate(job)), ThisMachine())
    assert isinstance(way, Commands) and way.command_of("a") is ON_OWN_MACHINE
    way.admit("b")
    monkeypatch.setattr(targets, "allocation", lambda environ: Given("a", "b"))
    with pytest.raises(UsageError, match="the hosts of the job are those that batch job 1 has given it"):
        target({"a": {}, "b": {}}, 2).admit("c")
