"""Runs one training under `dynamix launch`, from its cluster file to its run folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
