"""Refuses what cannot work, before anything is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.host.code_files import code_folder, script_of
from dynamix_ps.launch.host.host_facts import code_of, package_digest
from dynamix_ps.launch.preflight.host_checks import Expected
from dynamix_ps.policy.registry import check_policy, make_policy, policy_rng


def preflight(config: Config, resume: Path | None = None) -> None:
    """`check_launch` for a job that starts now. Makes the policy too, which runs the code of a policy from elsewhere.

    Raises:
        UsageError, EnvironmentNotReady, PolicyError: as `check_launch`.
    """
    check_launch(config, resume)
    if config.has_arbitrator:
        make_policy(config, len(config.cluster.workers), policy_rng(config))


def check_launch(config: Config, resume: Path | None = None) -> None:
    """Check command and checkpoint of a launch, and run `check_machine`. Runs no code that the cluster file names.

    Raises:
        UsageError: there is no command, or its program, its script or the checkpoint does not exist.
        UsageError, EnvironmentNotReady, PolicyError: as `check_machine`.
    """
    check_command(config.command)
    check_machine(config)
    if resume is not None and not resume.is_file():
        raise UsageError(f"--resume: no checkpoint file {resume}; a run keeps its own in checkpoints/")


def check_machine(config: Config) -> None:
    """Check whether the cluster can be launched here: BytePS, the policy file, the variable for shared memory.

    Raises:
        UsageError: a variable has an unknown value.
        EnvironmentNotReady: BytePS is not installed, or was built by another version of this package.
        PolicyError: there is no such policy, or its file is unusable.
    """
    if config.data_plane.has_servers:
        byteps = installed_info()
        if not byteps.version:
            raise EnvironmentNotReady(
                "BytePS is not installed in this environment; run: dynamix build-byteps. Or set comm: gloo in the "
                "cluster file: a ring of workers, which needs no build"
            )
        if byteps.ours and not byteps.current:
            raise EnvironmentNotReady("BytePS was built by another version of this package; run: dynamix build-byteps")
    shared_memory = config.env.get(variables.SHARED_MEMORY) or variables.get(variables.SHARED_MEMORY, "1")
    if shared_memory not in ("0", "1"):
        raise UsageError(f"{variables.SHARED_MEMORY}={shared_memory!r}: expected 0 (everything by TCP) or 1")
    if config.has_arbitrator:
        check_policy(config)


def check_command(command: tuple[str, ...]) -> None:
    """Raises UsageError where the command of the workers cannot exist."""
    if not command:
        raise UsageError("no command for the workers; give it after `--`, or as `command:` in the cluster file")
    if any("\0" in argument for argument in command):
        raise UsageError("the command contains a NUL character")
    if command[0] != "python" and shutil.which(command[0]) is None:
        raise UsageError(f"command not found, or not executable: {command[0]!r}")
    script = script_of(command)
    if script is not None and not Path(script).is_file():
        raise UsageError(f"script not found: {script} (looked in {os.getcwd()})")


def expected_of_hosts(config: Config, code_is_there: bool) -> Expected:
    """Versions and files of this machine that all hosts must have. `code_is_there`: whether that includes the code."""
    code, problem = code_of(code_folder(config.command, Path.cwd(), variables.home_dir()))
    return Expected(package_digest(), code if code_is_there else None, problem)
