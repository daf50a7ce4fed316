"""`dynamix launch`: all roles of a cluster file on their hosts, supervised."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from dynamix_ps.cli.options.host_options import given_to_unnamed, host_options
from dynamix_ps.cli.options.one_value import Command, one_value
from dynamix_ps.cli.options.policy_name import POLICY_NAMES, PolicyName
from dynamix_ps.cli.options.without_file import WorkersChoice, in_words, workers_options
from dynamix_ps.config.host_list import as_list, chosen_hosts
from dynamix_ps.config.load import check_rules, load_config
from dynamix_ps.config.schema import Config, Host, PolicySection
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.job.run import dry_run, run_job
from dynamix_ps.launch.preflight.launch_checks import check_command
from dynamix_ps.launch.roles.plan import hosts_with_roles
from dynamix_ps.launch.targets.choice import Allocation, allocated_hosts
from dynamix_ps.policy.registry import check_policy, findings, findings_at_start
from dynamix_ps.terminal import make_console, print_line

_MODES = ("adapt", "observe", "off")


@dataclass(frozen=True, slots=True)
class JobChoice:
    """What the command line says about a job, beside its cluster file."""

    resume: Path | None
    run_dir: str | None
    policy: str | None
    mode: str | None
    insecure: bool


def job_options(command: Command) -> Command:
    """The options that say which job it is, beside its cluster file; the command gets them as `job`."""
    command = one_value("job", JobChoice)(command)
    for option in reversed(_JOB_OPTIONS):
        command = option(command)
    return command


cluster_file = partial(
    click.option, "-c", "--config", "config_file", type=click.Path(path_type=Path), help="Cluster file."
)
_JOB_OPTIONS = (
    click.option("--resume", type=click.Path(path_type=Path), help="Checkpoint to continue from."),
    click.option("--run-dir", help="Folder for run folders, instead of run_dir in the file."),
    click.option(
        "--policy", type=PolicyName(), help=f"Policy, instead of the section policy in the file: {POLICY_NAMES}."
    ),
    click.option("--mode", type=click.Choice(_MODES), help="Mode, instead of mode in the file."),
    click.option(
        "--insecure", is_flag=True, help="Do not encrypt calls between hosts, as cluster.insecure in the file."
    ),
)


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@cluster_file()
@workers_options
@job_options
@click.option(
    "--dry-run", "dry", is_flag=True, help="Print the environment and the command line of every role; start nothing."
)
@click.option(
    "--wait", is_flag=True, help="Return when the plots are drawn too, as always where the output is no terminal."
)
@host_options
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def command(
    config_file: Path | None,
    own: WorkersChoice,
    job: JobChoice,
    dry: bool,
    wait: bool,
    listed: str | None,
    hostfile: Path | None,
    include: str | None,
    exclude: str | None,
    cmd: tuple[str, ...],
) -> int:
    """Run all roles of a cluster file on its hosts, or so many workers without one.

    CMD is what every worker runs, instead of `command:` in the file. It is passed on exactly as given.
    `python` means the interpreter of this installation. Within a job of Slurm or Kubernetes or a Ray cluster the hosts
    of a file that names none are its nodes or pods.

    \b
    Examples:
      dynamix launch -c configs/demo.yaml -- python train.py --epochs 3
      dynamix launch -n 4 --batch 32 -- python train.py
    """
    config = _config(config_file, own, job.policy, dry, cmd)
    given = given_to_unnamed(config.cluster.hosts, listed, hostfile)
    known = config.cluster.hosts if given is None else allocated_hosts(given, config)
    hosts = chosen_hosts(known, listed, hostfile, include, exclude)
    config = with_overrides(config, job.run_dir, job.policy, job.mode, cmd, hosts, job.insecure)
    console = make_console()
    if config_file is None:
        print_line(console, Text(in_words(config)))
    elif dry:
        check_command(config.command)
        if config.has_arbitrator:
            check_policy(config)
        dry_run(config, config_file, job.resume, console)
        return 0
    if given is not None and hosts:
        print_line(console, Text(_about(given, config)))
    return run_job(config, sys.argv, job.resume, console, given=given, waits=wait or not console.is_terminal)


def _config(file: Path | None, own: WorkersChoice, policy: str | None, dry: bool, cmd: tuple[str, ...]) -> Config:
    """Of the cluster file, or of the options in its place.

    Raises:
        UsageError: there are both or neither, or a dry run, whose lines name the cluster file, has none.
        ConfigError: it is wrong.
    """
    if file is None:
        if dry:
            raise UsageError("--dry-run shows what roles do with a cluster file: write one with `dynamix init`")
        return own.config(policy, cmd)
    if own.is_given:
        raise UsageError(
            f"-n, --batch, --bounds, --speeds and --comm are for jobs without a cluster file; say it in {file}"
        )
    return load_config(file, findings if dry else findings_at_start)


def _about(given: Allocation, config: Config) -> str:
    """Where hosts that the cluster file does not name come from."""
    hosts, used = config.cluster.hosts, hosts_with_roles(config)
    idle = [name for name in hosts if name not in used]
    return f"hosts from {given.name}: {as_list(hosts)}" + (f"; without a role: {', '.join(idle)}" if idle else "")


def with_overrides(
    config: Config,
    run_dir: str | None,
    policy: str | None,
    mode: str | None,
    cmd: tuple[str, ...],
    hosts: Mapping[str, Host] | None = None,
    insecure: bool = False,
) -> Config:
    """The config as the command line changes it. Another policy drops the section of the one in the file.

    Raises:
        ConfigError: the changes break a rule between keys.
    """
    changes: dict[str, Any] = {}
    if run_dir:
        changes["run_dir"] = run_dir
    if policy and policy != config.policy.name:
        changes["policy"] = PolicySection(name=policy)
    if mode:
        changes["mode"] = mode
    if cmd:
        changes["command"] = cmd
    cluster: dict[str, Any] = {}
    if hosts is not None and hosts != config.cluster.hosts:
        cluster["hosts"] = hosts
    if insecure:
        cluster["insecure"] = True
    if cluster:
        changes["cluster"] = config.cluster.model_copy(update=cluster)
    return check_rules(config.model_copy(update=changes), f"command line ({shlex.join(sys.argv[1:])})")
