"""An agent that listens takes the launcher of its job and nobody else, and ends with it."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dynamix_ps import own_process
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.messages.agent_messages import CleanUp, Hello, Notice
from dynamix_ps.launch.roles.authority import DAY_S, Authority
from dynamix_ps.launch.targets.command_link import AgentCommand
from dynamix_ps.launch.targets.kubernetes import tls_command
from dynamix_ps.launch.targets.kubernetes.job_secret import TOKEN, JobSecret
from tests.job_secret import job_secret
from tests.launching import dynamix, environment, read_until
from tests.unit.launch.targets.test_command_link import Rig

pytestmark = pytest.mark.timeout(60)


class Agent:
    """`dynamix agent` on this machine; its own output is in `said`."""

    def __init__(self, folder: Path, secret: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.process = dynamix("agent", "--secret", str(secret), "--port", str(self.port), cwd=folder)
        self.said = read_until(self.process, "waits for its launcher")

    def launcher(self, secret: Path) -> Rig:
        """The launcher's end of a link to it."""
        argv = own_process.command(tls_command.MODULE, "127.0.0.1", str(self.port), str(secret))
        return Rig(AgentCommand(argv, "the connection", environ=environment()))

    def until(self, text: str) -> None:
        self.said += read_until(self.process, text)

    def ends(self) -> int:
        self.said += self.process.communicate(timeout=30)[0]
        return self.process.returncode


@pytest.fixture
def authority() -> Authority:
    return Authority(time.time())


@pytest.fixture
def secret(tmp_path: Path, authority: Authority) -> Path:
    job_secret(tmp_path / "own", authority)
    return tmp_path / "own"


@pytest.fixture
def agent(tmp_path: Path, secret: Path) -> Iterator[Agent]:
    made = Agent(tmp_path, secret)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


def knows(launcher: Rig) -> bool:
    return any(isinstance(message, Hello) for message in launcher.got)


def test_its_launcher_ends_it(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    launcher.link.send(CleanUp())
    launcher.until(lambda: launcher.link.lost)
    assert launcher.link.lost.startswith("the connection ended with exit code 3 (error: 127.0.0.1 port")
    assert agent.ends() == 0
    launcher.link.close()


def test_without_its_launcher_it_ends_with_exit_code_3(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    launcher.link._process.kill()
    assert agent.ends() == 3
    assert "the stream of the launcher has ended; all that it had started was ended" in agent.said
    launcher.link.close()


@pytest.mark.slow
def test_a_launcher_that_is_silent_loses_its_lease(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    assert agent.ends() == 3  # nobody calls `tick`, which says that the launcher is there
    assert "the launcher has not been heard of for 7 s" in agent.said
    launcher.link.close()


@pytest.mark.slow
def test_a_notice_to_it_comes_to_the_launcher(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    agent.process.send_signal(signal.SIGTERM)
    launcher.until(lambda: Notice("SIGTERM") in launcher.got)
    launcher.link.send(CleanUp())
    assert agent.ends() == 0
    launcher.link.close()


def test_sigterm_ends_it_while_it_waits(agent: Agent) -> None:
    agent.process.send_signal(signal.SIGTERM)
    assert agent.ends() == 130


def test_a_second_launcher_is_not_taken(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    with pytest.raises(EnvironmentNotReady, match=r"no agent answers \(Connection refused\)"):
        tls_command.connected("127.0.0.1", agent.port, secret, start_s=0.0)
    assert not launcher.link.lost
    launcher.link.close()


STRANGERS = {
    "of-another-job": "it has no certificate of this job",
    "expired": "it has no certificate of this job",
    "without-certificate": "it has no certificate of this job",
    "with-another-token": "it has another token",
    "without-tls": "it has no certificate of this job",
}


@pytest.mark.parametrize("stranger", list(STRANGERS))
def test_strangers_are_refused_and_the_launcher_is_still_taken(
    agent: Agent, secret: Path, authority: Authority, tmp_path: Path, stranger: str
) -> None:
    theirs, token = tmp_path / "theirs", JobSecret.load(secret).token
    if stranger == "expired":
        authority._period = Authority(time.time() - 3 * DAY_S, DAY_S)._period
    job_secret(
        theirs,
        None if stranger == "of-another-job" else authority,
        None if stranger == "with-another-token" else token,
    )
    assert came_to(agent.port, stranger, theirs) == b""
    agent.until(f"refused 127.0.0.1: {STRANGERS[stranger]}")
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    launcher.link.send(CleanUp())
    launcher.until(lambda: launcher.link.lost)
    assert agent.ends() == 0
    launcher.link.close()


def came_to(port: int, stranger: str, theirs: Path) -> bytes:
    """What an agent says to a stranger, behind the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if stranger != "without-certificate":
        context.load_cert_chain(theirs / "tls.crt", theirs / "tls.key")
    with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
        try:
            if stranger == "without-tls":
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
                while plain.recv(1000):  # an alert
                    pass
                return b""
            with context.wrap_socket(plain) as secured:
                secured.sendall((theirs / TOKEN).read_bytes() + b"\n")
                return secured.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_who_only_looks_whether_it_listens_is_not_told_of(agent: Agent, secret: Path) -> None:
    socket.create_connection(("127.0.0.1", agent.port), 10.0).close()
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    launcher.link.send(CleanUp())
    launcher.until(lambda: launcher.link.lost)
    assert agent.ends() == 0
    assert "refused" not in agent.said
    launcher.link.close()


def test_who_says_nothing_holds_up_nobody(agent: Agent, secret: Path) -> None:
    silent = [socket.create_connection(("127.0.0.1", agent.port), 10.0) for _ in range(20)]
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    launcher.link.close()
    for one in silent:
        one.close()


def test_a_launcher_refuses_an_agent_of_another_job(agent: Agent, tmp_path: Path) -> None:
    job_secret(tmp_path / "theirs")
    launcher = agent.launcher(tmp_path / "theirs")
    launcher.until(lambda: launcher.link.lost)
    assert "what listens there has no certificate of this job" in launcher.link.lost
    launcher.link.close()


def test_the_token_is_in_no_command_line_and_no_environment(agent: Agent, secret: Path) -> None:
    launcher = agent.launcher(secret)
    launcher.until(lambda: knows(launcher))
    token = JobSecret.load(secret).token
    for process in psutil.process_iter(["cmdline", "environ"]):
        told = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {}).values()]
        assert not any(token in text for text in told)
    launcher.link.close()


def test_a_port_that_is_taken_and_a_secret_that_is_missing(tmp_path: Path, secret: Path) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        output, _ = (one := dynamix("agent", "--secret", str(secret), "--port", str(port), cwd=tmp_path)).communicate()
    assert (one.returncode, output) == (
        3,
        f"error: port {port} for the launcher: Address already in use; choose another one with --port\n",
    )
    output, _ = (one := dynamix("agent", "--secret", "none", cwd=tmp_path)).communicate()
    assert one.returncode == 3
    assert output.startswith("error: certificates: none/ca.crt: No such file or directory")
