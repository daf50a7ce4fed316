"""`dynamix doctor`: what this machine has, and how to get what is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from dynamix_ps.config.load import load_config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.doctor import Check, all_checks
from dynamix_ps.policy.registry import findings

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "blocker": ("✗", "red")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="Also check this cluster file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the list.")
def command(config_file: Path | None, as_json: bool) -> int:
    """Check what this machine has, and say how to get what is missing.

    Ends with exit code 3 if something is missing without which nothing works.
    """
    config = load_config(config_file, findings) if config_file else None
    checks: list[Check] = []
    for check in all_checks(config):
        checks.append(check)
        if not as_json:
            _print(check)
    blocked = [check.name for check in checks if check.status == "blocker"]
    if as_json:
        click.echo(json.dumps({"ok": not blocked, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        click.echo(f"missing: {', '.join(blocked)}" if blocked else "ready")
    return EnvironmentNotReady.exit_code if blocked else 0


def _print(check: Check) -> None:
    mark, colour = _MARKS[check.status]
    click.echo(f"{click.style(mark, fg=colour)} {check.name}: {check.detail}")
    if check.status != "ok" and check.fix:
        click.echo(f"    fix: {check.fix}")
