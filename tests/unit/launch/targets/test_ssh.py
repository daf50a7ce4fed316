"""The command that reaches a host by ssh, and what is said when it does not."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.targets.ssh import advice, ssh_command

READS = """\
#!/bin/sh
[ "$1" = -G ] || exit 9
case $3 in
big) printf 'user me\\nhostname big.example.org\\nport 2022\\nconnecttimeout 20\\nidentityfile a\\nidentityfile b\\n' ;;
odd) echo '/home/me/.ssh/config: line 3: Bad configuration option: prot' >&2; exit 255 ;;
*) printf 'user me\\nhostname %s\\nport 22\\nconnecttimeout none\\n' "$3" ;;
esac
"""


LOGIN = "-oHostName=10.0.0.2 b"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Where a program stands for ssh that knows some hosts."""
    ssh = tmp_path / "ssh"
    ssh.write_text(READS)
    ssh.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def host_name_in(argv: tuple[str, ...]) -> list[str]:
    return [word.partition("=")[2] for word in argv if word.startswith("-oHostName=")]


@pytest.mark.parametrize(
    ("host", "address", "to", "host_name"),
    [
        ("node", None, "me@node port 22", []),
        ("node", "10.0.0.2", "me@10.0.0.2 port 22", ["10.0.0.2"]),
        ("big", "10.0.0.2", "me@big.example.org port 2022", []),
        ("fd00::2", None, "me@fd00::2 port 22", []),
    ],
)
def test_where_it_goes(environ: dict[str, str], host: str, address: str | None, to: str, host_name: list[str]) -> None:
    """~/.ssh/config counts; the address in the cluster file counts where that has none."""
    command = ssh_command(host, address, environ)
    assert command.name == f"ssh to {to}"
    assert host_name_in(command.argv) == host_name
    assert command.argv[-2] == host


def test_the_agent_gets_the_launchers_python_and_its_paths(environ: dict[str, str]) -> None:
    words = "PYTHONPATH=/a b:/c"
    *_, remote = ssh_command("node", None, {**environ, "PYTHONPATH": "/a b::/c", "DYNAMIX_TOKEN": "secret"}).argv
    assert shlex.split(remote)[3:] == ["exec", "env", words, sys.executable, "-m", "dynamix_ps.launch.host.agent"]
    *_, bare = ssh_command("node", None, environ).argv
    assert shlex.split(bare)[3:] == ["exec", sys.executable, "-m", "dynamix_ps.launch.host.agent"]


def test_nobody_is_asked_and_no_session_of_others_depends_on_it(environ: dict[str, str]) -> None:
    assert {"-oBatchMode=yes", "-oControlMaster=no", "-oRequestTTY=no"} < set(ssh_command("node", None, environ).argv)


def test_a_host_that_is_off_is_known_soon_unless_the_user_says_that_it_may_be_slow(environ: dict[str, str]) -> None:
    assert "-oConnectTimeout=7" in ssh_command("node", None, environ).argv
    assert not any("ConnectTimeout" in word for word in ssh_command("big", None, environ).argv)


def test_a_wrong_configuration_is_told_before_anything_starts(environ: dict[str, str]) -> None:
    said = "host odd: ssh cannot read its configuration: /home/me/.ssh/config: line 3: Bad configuration option: prot; "
    with pytest.raises(EnvironmentNotReady, match=re.escape(said + "correct ~/.ssh/config")):
        ssh_command("odd", None, environ)


def test_without_ssh(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match="host node: there is no ssh here to reach it; install"):
        ssh_command("node", None, {"PATH": str(tmp_path)})


def advised(exit_code: int, *lines: str, spoke: bool = False) -> str:
    return advice("b", "10.0.0.2", LOGIN, exit_code, lines, spoke)


@pytest.mark.parametrize(
    ("exit_code", "said", "expected"),
    [
        (255, "ssh: Could not resolve hostname b: Name or service not known", "give its address in cluster.hosts"),
        (255, "Host key for 10.0.0.2 has changed\nHost key verification failed.", "ssh-keygen -R 10.0.0.2"),
        (255, "Host key verification failed.", f"log in once by `ssh {LOGIN}`"),
        (255, "me@b: Permission denied (publickey,password).", f"run ssh-copy-id {LOGIN}, or ssh-add"),
        (255, "Received disconnect: Too many authentication failures", "IdentityFile and IdentitiesOnly for b"),
        (255, "ssh: connect to host b port 22: Connection refused", "start sshd there"),
        (255, "ssh: connect to host b port 22: Connection timed out", "see whether the host is on"),
        (
            255,
            "kex_exchange_identification: read: Connection reset",
            f"ssh {LOGIN} {sys.executable} --version",
        ),
        (127, f"bash: line 1: {sys.executable}: No such file or directory", f"under this path there: {sys.executable}"),
        (1, "No module named dynamix_ps", f"install this package there, for {sys.executable}"),
        (-9, "", f"ssh {LOGIN} {sys.executable} --version"),
    ],
)
def test_what_to_do_about_it(exit_code: int, said: str, expected: str) -> None:
    assert expected in advised(exit_code, *said.splitlines())


def test_ssh_says_nothing_of_an_agent_that_was_killed() -> None:
    assert "its agent was killed there" in advised(255, spoke=True)
    assert advised(255, "Connection to 10.0.0.2 closed by remote host.", spoke=True) == ""
    assert advised(3, spoke=True) == ""
