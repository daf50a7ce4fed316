"""The earlier attempt of a job that its launcher has started again: its newest checkpoint is where training goes on.

The run folder of each attempt keeps which agents of the launcher have started its processes. An agent outlives the
attempts, so a folder that names the agent of this process is of the same job.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

LAUNCH = "launch"  # the event that names agents and checkpoint


def agent_of_this_process() -> str:
    """The process that has started this one, and when that began, so that no later process is taken for it."""
    parent = psutil.Process(os.getppid())
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {parent.pid} {parent.create_time():.2f}"


def checkpoint_of_earlier_attempt(run_dir: Path, agent: str) -> Path | None:
    """Where the attempt before this one would go on; None: there is none of it, or it has left no checkpoint."""
    latest = run_dir / "latest"
    if not latest.is_dir():
        return None
    folder = RunFolder(latest.resolve())
    launches = (line for line in JsonLinesTail(folder.events_file).read() if line.get("kind") == LAUNCH)
    launch = next(launches, {})
    if agent not in launch.get("agents", ()):
        return None
    if (newest := folder.newest_checkpoint()) is not None:
        return newest
    resume = launch.get("resume")
    return Path(resume) if resume else None
