"""The process of an agent: how long it waits for the launcher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from dynamix_ps.launch.host import agent
from dynamix_ps.launch.host.host_agent import HostAgent
from dynamix_ps.launch.messages.agent_messages import Alive, Decoder, Hello, Message, Notice, RoleEnded, encode

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int]]:
    """(what the agent reads from, what the launcher writes to, what the agent writes to)"""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    reading, writing = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    yield reading, writing, nowhere
    for descriptor in (reading, nowhere):
        os.close(descriptor)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_silent_launcher_is_given_up(monkeypatch: pytest.MonkeyPatch, pipes: tuple[int, int, int]) -> None:
    reading, writing, nowhere = pipes
    monkeypatch.setattr(agent, "LEASE_S", 0.1)
    assert agent.AgentProcess(reading, nowhere).run() == "the launcher has not been heard of for 0.1 s"
    os.close(writing)


def test_the_time_of_its_own_work_is_no_silence(monkeypatch: pytest.MonkeyPatch, pipes: tuple[int, int, int]) -> None:
    """A probe may take 10 s to start; meanwhile nothing is read."""
    reading, writing, nowhere = pipes
    monkeypatch.setattr(agent, "LEASE_S", 0.1)
    monkeypatch.setattr(HostAgent, "receive", lambda self, message: time.sleep(0.2))
    os.write(writing, encode(Alive()))
    os.close(writing)
    assert agent.AgentProcess(reading, nowhere).run() == "the stream of the launcher has ended"


def test_the_first_sigterm_is_a_notice_for_the_launcher_before_all_else_and_the_second_ends_the_agent(
    monkeypatch: pytest.MonkeyPatch, pipes: tuple[int, int, int]
) -> None:
    reading, writing, _ = pipes
    heard, said = os.pipe()
    process = agent.AgentProcess(reading, said)
    signals = iter((signal.SIGTERM, None, signal.SIGTERM))

    def tick(self: HostAgent) -> None:
        number = next(signals, None)
        if number is not None:
            os.kill(os.getpid(), number)
            process._send(RoleEnded("worker-0", -15, 0.0))  # who tells the agent may tell its roles, too

    monkeypatch.setattr(HostAgent, "tick", tick)
    assert process.run() == "SIGTERM"
    os.close(said)
    with open(heard, "rb") as stream:
        kinds: list[type[Message]] = [type(message) for message in Decoder().feed(stream.read())]
    assert [kind for kind in kinds if kind is not Alive] == [Hello, Notice, RoleEnded, RoleEnded]
    os.close(writing)
