"""Hosts that OpenSSH reaches, with the user's configuration, keys and agent.

The agent of a host is `ssh HOST python -m dynamix_ps.launch.host.agent`, with the launcher's Python, which has the same
path on all hosts. What the launcher tells the agent, the token too, goes through ssh's standard input, never through a
command line or the environment. A connection that the user's ControlMaster holds open is used, and stays open.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.targets.command_link import AgentCommand, agent_argv

_OPTIONS: Mapping[str, str | int] = {
    "BatchMode": "yes",  # nobody answers questions
    "ServerAliveInterval": 2,  # with the next one: an ssh whose link is cut ends after 10 s, later than the lease
    "ServerAliveCountMax": 4,
    "ControlMaster": "no",  # the end of a job must not end other sessions
    "RequestTTY": "no",
    "RemoteCommand": "none",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
}
# Until a host counts as off, if the user's configuration does not say it: what is wrong with hosts is told within 10 s.
# A host that is on answers at once, or when the first packets were lost and have gone again after 1 and 3 s.
_CONNECT_S = 7
_READ_S = 10.0
_SSH_FAILED = 255  # exit code of ssh for its own errors
_NOT_FOUND = 127  # of a shell
# What ssh, the shell of the host or its Python say, and what to do about it. `{login}` is what leads there after `ssh`.
_ADVICE = (
    (r"Could not resolve hostname", "give its address in cluster.hosts, or HostName for {host} in ~/.ssh/config"),
    (r"has changed", "find out why its key is another one; if that is right, run: ssh-keygen -R {to}"),
    (r"Host key verification failed", "log in once by `ssh {login}`, and compare the key it shows"),
    (r"Too many authentication failures", "name the key: IdentityFile and IdentitiesOnly for {host} in ~/.ssh/config"),
    (r"Permission denied", "`ssh {login}` must ask for nothing: run ssh-copy-id {login}, or ssh-add for the key"),
    (r"Connection refused", "start sshd there, or give its port for {host} in ~/.ssh/config"),
    (
        r"timed out|No route to host|unreachable",
        "see whether the host is on, and what is between here and it; if it is slow, set ConnectTimeout for {host} "
        "in ~/.ssh/config",
    ),
    (r"[Nn]o such file|not found", "install the same environment under this path there: {python}"),
    (r"No module named", "install this package there, for {python}"),
)


def ssh_command(host: str, address: str | None, environ: Mapping[str, str]) -> AgentCommand:
    """The command that starts the agent of a host.

    Args:
        host: name of the host in the cluster file; ~/.ssh/config may have settings for it.
        address: where ssh connects to if those settings do not say it; None: to the name.
        environ: the launcher's environment; its PYTHONPATH is that of the agent too.

    Raises:
        EnvironmentNotReady: there is no ssh, or it cannot read its configuration.
    """
    ssh = shutil.which("ssh", path=environ.get("PATH"))
    if ssh is None:
        raise EnvironmentNotReady(f"host {host}: there is no ssh here to reach it; install OpenSSH's client")
    configured = _configured(ssh, host)
    to = configured.get("hostname", host)
    there: tuple[str, ...] = (host,)
    if address is not None and to.casefold() == host.casefold():
        to, there = address, (f"-oHostName={address}", host)
    limit = {"ConnectTimeout": _CONNECT_S} if configured.get("connecttimeout", "none") == "none" else {}
    options = (f"-o{name}={value}" for name, value in {**_OPTIONS, **limit}.items())
    name = f"ssh to {configured.get('user', '')}@{to} port {configured.get('port', '22')}"
    shell = (ssh, *options, *there[:-1])
    argv = (*shell, host, _remote_command(environ))
    return AgentCommand(argv, name, advice=partial(advice, host, to, " ".join(there)), shell=shell)


def advice(host: str, to: str, login: str, exit_code: int, lines: Sequence[str], spoke: bool) -> str:
    """What to do when ssh has ended. `lines`: the last lines of its standard error. Pure.

    `host`: its name. `to`: the name or address to which ssh connected. `login`: the words after `ssh` for that.
    """
    if spoke:  # so ssh works; of a killed command it says nothing
        silent = exit_code == _SSH_FAILED and not lines
        return "its agent was killed there, perhaps for memory: see the kernel's log of that host" if silent else ""
    said = "\n".join(lines)
    for pattern, text in _ADVICE if exit_code in (_SSH_FAILED, _NOT_FOUND, 1) else ():
        if re.search(pattern, said):
            return text.format(host=host, to=to, login=login, python=sys.executable)
    return f"see what this says: ssh {login} {shlex.quote(sys.executable)} --version"


def _configured(ssh: str, host: str) -> dict[str, str]:
    """What the configuration of ssh says about a host."""
    try:
        done = subprocess.run(
            [ssh, "-G", "--", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_READ_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentNotReady(f"host {host}: cannot run {ssh} -G: {error}") from error
    if done.returncode != 0:
        said = "; ".join(line for line in done.stderr.splitlines() if line)
        raise EnvironmentNotReady(f"host {host}: ssh cannot read its configuration: {said}; correct ~/.ssh/config")
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key: value for key, _, value in reversed(list(pairs))}  # of several values the first


def _remote_command(environ: Mapping[str, str]) -> str:
    """The command as a line for the login shell of the host, whichever shell that is."""
    # Python imports from the folder in which it is started, which is the home of the user, with whatever is in it.
    return f"cd / ; exec {shlex.join(agent_argv(environ))}"
