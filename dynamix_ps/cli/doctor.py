"""`dynamix doctor`: what this machine or the hosts of a job have, and how to get what is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from dynamix_ps.cli.options.host_options import given_to_unnamed, host_options
from dynamix_ps.config.host_list import chosen_hosts
from dynamix_ps.config.load import check_rules, load_config
from dynamix_ps.config.resolve import resolved, with_places
from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.preflight.check import Check
from dynamix_ps.launch.preflight.doctor import all_checks
from dynamix_ps.launch.preflight.host_checks import host_checks
from dynamix_ps.launch.preflight.host_table import host_lines, way_lines
from dynamix_ps.launch.preflight.inspection import HostReport, inspect_hosts
from dynamix_ps.launch.preflight.launch_checks import expected_of_hosts
from dynamix_ps.launch.roles.placement import ThisMachine
from dynamix_ps.launch.roles.plan import cpus_per_worker
from dynamix_ps.launch.targets.choice import Allocation, target_of
from dynamix_ps.policy.registry import findings

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "blocker": ("✗", "red")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="Also check this cluster file.")
@click.option("--hosts", "of_hosts", is_flag=True, help="Check its hosts and the links between them instead.")
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the list.")
def command(
    config_file: Path | None,
    of_hosts: bool,
    listed: str | None,
    hostfile: Path | None,
    include: str | None,
    exclude: str | None,
    as_json: bool,
) -> int:
    """Check what this machine has, and say how to get what is missing.

    With --hosts: reach all hosts of a job, and see whether they have the same code and versions, whether every host
    reaches every other one, and how fast. Run it in the folder from which you launch. Within a Slurm job or a Ray
    cluster the hosts of a file that names none are its nodes, as in `dynamix launch`.

    Ends with exit code 3 if something is missing without which nothing works.

    \b
    Example:
      dynamix doctor --hosts -c configs/three-hosts.yaml
    """
    config = load_config(config_file, findings) if config_file else None
    choice = (listed, hostfile, include, exclude)
    if of_hosts:
        given = given_to_unnamed(config.cluster.hosts if config else {}, listed, hostfile)
        return _check_hosts(_with_hosts(config, given, *choice), given, as_json)
    if any(option is not None for option in choice):
        raise UsageError("-H, --hostfile, --include and --exclude name hosts to check; add --hosts")
    checks: list[Check] = []
    for check in all_checks(config):
        checks.append(check)
        if not as_json:
            _print(check)
    return _conclude(checks, as_json, "missing")


def _with_hosts(
    config: Config | None,
    given: Allocation | None,
    listed: str | None,
    hostfile: Path | None,
    include: str | None,
    exclude: str | None,
) -> Config:
    """The job with these hosts; without a cluster file one that has a worker in each slot.

    Raises:
        UsageError: there are none, or too few.
        EnvironmentNotReady: a batch system cannot be asked for them.
    """
    known = config.cluster.hosts if config else {}
    if given is not None:
        known = (
            given.hosts(len(with_places(config).cluster.workers), cpus_per_worker(config)) if config else given.hosts(1)
        )
    hosts = chosen_hosts(known, listed, hostfile, include, exclude)
    if not hosts:
        raise UsageError("--hosts: no host is named; give -c FILE with cluster.hosts, -H, or --hostfile")
    if config is None:
        slots = sum(host.room for host in hosts.values())
        config = Config(cluster=Cluster(hosts=hosts, workers=(WorkerSection(),) * max(1, slots)))
    cluster = config.cluster.model_copy(update={"hosts": hosts})
    return resolved(check_rules(config.model_copy(update={"cluster": cluster}), "the hosts"))


def _check_hosts(config: Config, given: Allocation | None, as_json: bool) -> int:
    report = inspect_hosts(config, target_of(config, ThisMachine(), given))
    found = host_checks(report, config, expected_of_hosts(config, code_is_there=config.sync == "none"))
    if not as_json:
        for line in (*host_lines(report), "", *way_lines(report), ""):
            click.echo(line)
        for check in found:
            _print(check)
    return _conclude(found, as_json, "not ready", _as_json(report))


def _as_json(report: HostReport) -> dict[str, Any]:
    return {
        "hosts": {host: dataclasses.asdict(answer) for host, answer in report.answers.items()},
        "links": [dataclasses.asdict(way) for way in report.ways],
    }


def _conclude(checks: Iterable[Check], as_json: bool, what: str, more: dict[str, Any] | None = None) -> int:
    blocked = list(dict.fromkeys(check.name for check in checks if check.status == "blocker"))
    if as_json:
        found = {"ok": not blocked, "checks": [dataclasses.asdict(check) for check in checks], **(more or {})}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"{what}: {', '.join(blocked)}" if blocked else "ready")
    return EnvironmentNotReady.exit_code if blocked else 0


def _print(check: Check) -> None:
    mark, colour = _MARKS[check.status]
    click.echo(f"{click.style(mark, fg=colour)} {check.name}: {check.detail}")
    if check.status != "ok" and check.fix:
        click.echo(f"    fix: {check.fix}")
