"""The process of one rehearsed run: the user's script, in a run folder, with what tells `attach()` to rehearse."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario
from worker_hooks.process.launched import LAUNCHER_VARIABLES

SEED = "{seed}"  # in the script's command: the seed of the run
_LAST_LINES = 12


def start_script(folder: RunFolder, config: Config, scenario: Scenario, **own: str) -> subprocess.Popen[bytes]:
    """Start the command of `config`, with its seed. What an earlier attempt has left in the folder is removed.

    `own`: variables of this run alone.
    """
    shutil.rmtree(folder.path, ignore_errors=True)
    for part in (folder.logs_dir, folder.workers_dir, folder.roles_dir, folder.arbitrator_dir):
        part.mkdir(parents=True)
    folder.checkpoints_dir.mkdir()
    folder.write_config(config)
    scenario_file = folder.path / "scenario.yaml"
    scenario_file.write_text(dump_scenario(scenario), encoding="utf-8")
    argv = [word.replace(SEED, str(config.seed)) for word in config.command]
    if argv[0] == "python":
        argv[0] = sys.executable
    foreign = variables.OF_ONE_RUN | LAUNCHER_VARIABLES
    environ = {name: value for name, value in os.environ.items() if name not in foreign}
    environ = {**ONE_THREAD, **environ, **config.env, "PYTHONUNBUFFERED": "1", **own}
    environ[variables.CONFIG] = str(folder.config_file)
    environ[variables.RUN_DIR] = str(folder.path)
    environ[variables.RUN_ID] = secrets.token_hex(4)
    environ[variables.REHEARSAL] = str(scenario_file)
    with folder.log_file("worker-0").open("wb") as log:
        return subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def why_useless(folder: RunFolder, exit_code: int) -> str:
    """For the error of a run that has ended without what was expected of it: how, and the end of its log."""
    log = folder.log_file("worker-0")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    why = f"exit code {exit_code}" if exit_code else "its script has trained nothing with dynamix.attach()"
    told = "".join(f"\n  {line}" for line in lines) or " nothing"
    return f"{why}; the end of {log}:{told}"
