"""`sync: rsync`: the command that copies, and what is refused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.job.code_sync import rsync_argv, send_code
from dynamix_ps.launch.targets.agent_link import OwnProcess
from dynamix_ps.launch.targets.command_link import ON_OWN_MACHINE, AgentCommand, Commands

SSH = ("/usr/bin/ssh", "-oBatchMode=yes", "-oHostName=10.0.0.2")
REMOTE = Commands(lambda host: ON_OWN_MACHINE if host == "here" else AgentCommand(("x",), shell=SSH))


def config(**changes: str) -> Config:
    data = {"cluster": {"workers": ({},)}, "command": ("python", "train.py"), "sync": "rsync", **changes}
    return Config.model_validate(data)


def test_the_command() -> None:
    argv = rsync_argv("rsync", "b", SSH, Path("/my job"), Path("out/runs-of-today"))
    assert argv[-2:] == ("/my job/", "b:/my job/")
    assert {"--exclude=.git", "--exclude=.venv", "--exclude=__pycache__", "--exclude=runs"} < set(argv)
    assert "--exclude=/out/runs-of-today" in argv
    assert "--rsync-path=mkdir -p '/my job' && rsync" in argv
    assert f"--rsh={shlex.join(SSH)}" in argv
    assert not any(word.startswith("--delete") for word in argv)
    assert rsync_argv("rsync", "fd00::2", SSH, Path("/j"), Path("/elsewhere"))[-1] == "[fd00::2]:/j/"


def test_hosts_that_run_no_commands() -> None:
    with pytest.raises(EnvironmentNotReady, match="host b is reached by something else than ssh; set sync: none"):
        rsync_argv("rsync", "b", (), Path("/j"), Path("runs"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rsync(folder: Path, body: str) -> dict[str, str]:
    """An environment in which rsync is this."""
    program = folder / "bin" / "rsync"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return {"PATH": str(program.parent)}


def never() -> bool:
    return False


def send(environ: dict[str, str], *hosts: str, stopped: Callable[[], bool] = never) -> bool:
    return send_code(config(), REMOTE, hosts, environ, stopped)


def test_every_other_host_gets_the_code(folder: Path) -> None:
    environ = rsync(folder, f'for last; do :; done; echo "$last" >> {folder}/sent')
    assert send(environ, "here", "b", "c")
    assert sorted((folder / "sent").read_text().splitlines()) == [f"b:{folder}/", f"c:{folder}/"]


def test_nothing_is_sent_where_no_host_is_another_machine(folder: Path) -> None:
    assert send({"PATH": ""}, "here")
    assert send_code(config(), OwnProcess({}), ("localhost",), {"PATH": ""}, never)


def test_without_rsync(folder: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match="there is no rsync here; install it, or set sync: none"):
        send({"PATH": str(folder)}, "b")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo 'sh: 1: rsync: not found' >&2; exit 12",
            r"host b: rsync ended with exit code 12 \(sh: 1: rsync: not found\); install rsync there",
        ),
        ("echo 'disk full' >&2; exit 11", r"host b: rsync ended with exit code 11 \(disk full\); see what it says"),
    ],
)
def test_a_copy_that_fails_names_the_host(folder: Path, body: str, said: str) -> None:
    with pytest.raises(EnvironmentNotReady, match=said):
        send(rsync(folder, body), "b")


def test_a_home_is_not_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "me"))
    with pytest.raises(EnvironmentNotReady, match="holds more than the code of the job"):
        send_code(config(), REMOTE, ("b",), rsync(folder, "exit 0"), never)


def test_a_signal_to_the_launcher_ends_the_copies(folder: Path) -> None:
    assert not send(rsync(folder, "exec sleep 60"), "b", stopped=lambda: True)
