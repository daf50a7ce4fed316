"""Trainings under `dynamix launch`: one from its cluster file to its run folder, and the processes of one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_folder import RunFolder


def launched(config: Config, folder: Path, limit_s: float) -> RunFolder:
    """Run in `folder`, with the cluster file there and the run folder where `config` says.

    Raises:
        SystemExit: the run failed; its output is in the text.
        TimeoutExpired: it took longer than `limit_s`.
    """
    file = folder / f"{config.name}.yaml"
    file.write_text(dump_config(config))
    command = [sys.executable, "-m", "dynamix_ps", "launch", "-c", str(file)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=limit_s,
        cwd=folder,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{config.name}: dynamix launch ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return RunFolder.open(Path(config.run_dir) / "latest")


def roles_of(launcher: psutil.Process) -> dict[str, psutil.Process]:
    """The processes that the launcher has started, and theirs, by name of their role; others by their command."""
    found: dict[str, psutil.Process] = {}
    for process in launcher.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            command = process.cmdline()
            role = process.environ().get(variables.ROLE_NAME, "")
            arbitrator = any("dynamix_ps.arbitrator" in word for word in command)
            found.setdefault("arbitrator" if arbitrator else role or " ".join(command[:4]), process)
    return found
