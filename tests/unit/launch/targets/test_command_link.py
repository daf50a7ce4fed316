"""The launcher's end of an agent: what it says about agents that never come, speak otherwise, or stop speaking."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.agent import hello
from dynamix_ps.launch.messages.agent_messages import (
    Alive,
    FromAgent,
    Hello,
    Prepare,
    Prepared,
    RequestRefused,
    RoleOutput,
    encode,
)
from dynamix_ps.launch.targets import command_link
from dynamix_ps.launch.targets.command_link import AgentCommand, CommandLink
from tests.launching import run_to_end, wait_for

pytestmark = pytest.mark.timeout(30)


class Rig:
    """A link to a command, with what it has delivered."""

    def __init__(self, *words: str | AgentCommand) -> None:
        self.selector = selectors.DefaultSelector()
        self.got: list[FromAgent] = []
        command = words[0] if isinstance(words[0], AgentCommand) else AgentCommand(tuple(map(str, words)))
        self.link = CommandLink("a", command, self.selector, lambda host, message: self.got.append(message))

    def until(self, condition: Callable[[], object]) -> None:
        def step() -> object:
            for key, _ in self.selector.select(0.02):
                key.data()
            self.link.tick()
            return condition()

        try:
            wait_for(step, f"the agent: {self.got}, {self.link.lost}", 20.0)
        finally:
            if self.link.lost:
                self.link.close()


def speaks(*messages: FromAgent, before: bytes = b"") -> tuple[str, ...]:
    """A command that sends these and then waits for the end of its input."""
    data = before + b"".join(map(encode, messages))
    return sys.executable, "-c", f"import sys; sys.stdout.buffer.write({data!r}); sys.stdout.flush(); sys.stdin.read()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            ("sh", "-c", "echo 'Permission denied' >&2; exit 255"),
            "its agent ended with exit code 255 (Permission denied)",
        ),
        (("sh", "-c", "echo 'Account expired'; exit 1"), "its agent ended with exit code 1 (Account expired)"),
        (("sh", "-c", "kill -9 $$"), "its agent was killed by SIGKILL"),
        (speaks(Hello(1, "0.0.0-other", "3", "h", 1)), "it has version 0.0.0-other of this package (protocol 1), the"),
        (("yes", "message of the day"), "more than 65536 bytes came that are no message of an agent"),
        (
            speaks(hello(), Alive(), Prepare("", "", (), "", "", "", "", "")),
            "its agent sent Prepare, which is for agents",
        ),
    ],
)
def test_why_an_agent_is_lost(command: tuple[str, ...], reason: str) -> None:
    rig = Rig(*command)
    rig.until(lambda: rig.link.lost)
    assert rig.link.lost.startswith(reason)


def test_an_agent_that_never_speaks_is_lost_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_link, "CONNECT_S", 0.2)
    rig = Rig("cat")
    rig.until(lambda: rig.link.lost)
    assert rig.link.lost == "its agent has not answered for 0.2 s"


def test_an_agent_that_is_ready_has_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_link, "LEASE_S", 0.3)
    rig = Rig(*speaks(hello(), Prepared("10.0.0.1", 1, 2, "")))
    rig.until(lambda: rig.link.lost)
    assert rig.link.lost.startswith("nothing has come from it for 0.3 s")


def test_what_a_login_shell_prints_does_no_harm() -> None:
    rig = Rig(*speaks(hello(), RoleOutput("worker-0", True, b"x\n"), before=b"Welcome\r\nto a node\n"))
    rig.until(lambda: len(rig.got) == 2)
    assert rig.got[1] == RoleOutput("worker-0", True, b"x\n")
    assert not rig.link.lost
    rig.link.close()


def test_what_an_agent_has_said_comes_although_it_takes_nothing_any_more() -> None:
    said, end = encode(hello()), encode(RequestRefused(3, "no"))
    code = f"import os, time; os.write(1, {said!r}); os.close(0); time.sleep(0.3); os.write(1, {end!r}); os._exit(3)"
    rig = Rig(sys.executable, "-c", code)
    rig.until(lambda: rig.got)

    def told() -> bool:
        rig.link.send(Alive())
        return len(rig.got) == 2

    rig.until(told)
    rig.until(lambda: rig.link.lost)
    assert rig.link.lost == "its agent ended with exit code 3"


def test_a_command_is_named_and_its_advice_follows() -> None:
    fails = ("sh", "-c", "echo no >&2; exit 255")
    command = AgentCommand(fails, "ssh to b", advice=lambda code, lines, spoke: f"{code} {lines[0]} {spoke}")
    rig = Rig(command)
    rig.until(lambda: rig.link.lost)
    assert rig.link.lost == "ssh to b ended with exit code 255 (no); 255 no False"


def test_an_agent_of_the_own_machine_writes_into_the_run_folder() -> None:
    rig = Rig(AgentCommand(("cat",), shares_run_folder=True))
    assert rig.link.shares_run_folder
    rig.link.close()


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(EnvironmentNotReady, match="host a: cannot run /no/such/ssh: No such file or directory"):
        Rig("/no/such/ssh")


def test_an_agent_refuses_what_it_cannot_do_and_ends_with_its_stream(tmp_path: Path) -> None:
    rig = Rig(sys.executable, "-m", "dynamix_ps.launch.host.agent")
    rig.link.send(Prepare("0badcafe", "a", (), str(tmp_path / "none"), "", "", "", "secret"))
    rig.until(lambda: len(rig.got) == 2)
    refusal = rig.got[1]
    assert isinstance(refusal, RequestRefused)
    assert refusal.exit_code == 3
    assert refusal.reason.startswith(f"host a has no folder {tmp_path / 'none'} (No such file or directory); have")
    rig.link.close()
    assert rig.link._process.returncode == 3


def test_an_agent_that_is_started_by_hand_says_who_starts_it() -> None:
    done = run_to_end([sys.executable, "-m", "dynamix_ps.launch.host.agent"])
    assert done.returncode == 3
    assert "error: the agent of a host is started by `dynamix launch`" in done.stderr
