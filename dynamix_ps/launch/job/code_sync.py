"""`sync: rsync`: copies the code of a job to its hosts before the run, over the connection that their agents use."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.launch.host.code_files import EXCLUDED, code_folder
from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.targets.agent_link import Target
from dynamix_ps.launch.targets.command_link import AgentCommand, Commands

_AT_ONCE = 16
_TICK_S = 0.02
_LAST_LINES = 3
_NOT_FOUND = 127  # of a shell
_SSH_FAILED = 255


def send_code(
    config: Config, target: Target, hosts: Sequence[str], environ: Mapping[str, str], stopped: Callable[[], bool]
) -> bool:
    """Copy the code of a job to the hosts that are other machines. Returns False if stopped before the end.

    Raises:
        EnvironmentNotReady: rsync is missing here or there, the folder is a home, the target of the hosts runs no
            commands there, or a copy has failed.
    """
    if not isinstance(target, Commands):
        return True  # one host, this one
    commands = {host: target.command_of(host) for host in hosts}
    others = {host: command for host, command in commands.items() if not command.shares_run_folder}
    if not others:
        return True
    rsync = shutil.which("rsync", path=environ.get("PATH"))
    if rsync is None:
        raise EnvironmentNotReady("sync: rsync: there is no rsync here; install it, or set sync: none")
    folder = code_folder(config.command, Path.cwd(), variables.home_dir())
    if variables.home_dir().is_relative_to(folder):
        raise EnvironmentNotReady(
            f"sync: rsync: {folder} holds more than the code of the job; launch it from the folder of its code"
        )
    waiting = [
        (host, command, rsync_argv(rsync, host, command.shell, folder, Path(config.run_dir)))
        for host, command in others.items()
    ]
    return _run_all(waiting, stopped)


class CodeCopy(threading.Thread):
    """Copies the code of a job to one host while the job goes on. `problem`: why it has failed, once it has ended."""

    def __init__(self, config: Config, target: Target, host: str) -> None:
        super().__init__(name=f"copy to {host}", daemon=True)
        self._config, self._target, self._host = config, target, host
        self.problem = ""
        self.start()

    def run(self) -> None:
        try:
            send_code(self._config, self._target, [self._host], os.environ, stopped=lambda: False)
        except DynamixError as error:
            self.problem = str(error)


def rsync_argv(rsync: str, host: str, shell: Sequence[str], folder: Path, run_dir: Path) -> tuple[str, ...]:
    """The command that copies a folder to the same path on a host. Pure. Raises EnvironmentNotReady.

    `run_dir`: where run folders are, relative to the folder from which the job is launched or absolute.
    """
    if not shell:
        raise EnvironmentNotReady(f"sync: rsync: host {host} is reached by something else than ssh; set sync: none")
    excluded = [f"--exclude={name}" for name in EXCLUDED]
    runs = Path(os.path.normpath(folder / run_dir))
    if runs.is_relative_to(folder) and runs != folder:
        excluded.append(f"--exclude=/{runs.relative_to(folder)}")
    path = shlex.quote(str(folder))
    there = f"[{host}]" if ":" in host else host
    return (
        *(rsync, "--recursive", "--links", "--perms", "--times", "-s", *excluded),
        *(f"--rsync-path=mkdir -p {path} && rsync", f"--rsh={shlex.join(shell)}", "--"),
        *(f"{folder}/", f"{there}:{folder}/"),
    )


@dataclass(slots=True)
class _Copy:
    """A copy in progress."""

    host: str
    command: AgentCommand
    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def check(self) -> None:
        """Raises EnvironmentNotReady if the copy has failed."""
        code = self.process.returncode
        if code == 0:
            return
        self.said.seek(0)
        lines = [line for line in self.said.read().decode(errors="replace").splitlines() if line.strip()]
        advice = self.command.advice(_SSH_FAILED, lines, False) if code == _SSH_FAILED else "see what it says"
        if code == _NOT_FOUND or any("rsync" in line and "not found" in line for line in lines):
            advice = "install rsync there, or set sync: none"
        words = "; ".join(lines[-_LAST_LINES:])
        raise EnvironmentNotReady(f"host {self.host}: rsync {how_it_ended(code)} ({words}); {advice}")


def _run_all(waiting: list[tuple[str, AgentCommand, tuple[str, ...]]], stopped: Callable[[], bool]) -> bool:
    running: list[_Copy] = []
    with ExitStack() as held:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                running.append(_begin(*waiting.pop(0), held))
            if stopped():
                return False
            for copy in [copy for copy in running if copy.process.poll() is not None]:
                running.remove(copy)
                copy.check()
            time.sleep(_TICK_S)
    return True


def _begin(host: str, command: AgentCommand, argv: tuple[str, ...], held: ExitStack) -> _Copy:
    """Start a copy, which ends with `held` at the latest."""
    said = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  it is closed with `held`
    process = subprocess.Popen(
        tied(argv, signal.SIGTERM),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,  # Ctrl-C is for the launcher
    )
    held.callback(process.wait)
    held.callback(process.terminate)
    return _Copy(host, command, process, said)
