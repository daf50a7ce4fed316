"""`dynamix policy`: train a policy in the simulator, compare it with others, inspect its file, make it smaller."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from dynamix_ps.cli.options.policy_name import POLICY_NAMES, PolicyName
from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.parts import load
from dynamix_ps.policy.ppo.policy_file import StoredPolicy, load_policy, save_policy
from dynamix_ps.policy.registry import policy_of
from dynamix_ps.terminal import make_console

TUNED = "tuned-static"
RIVALS = ("static", "proportional", "pid", "goodput", TUNED)
SPACES = ("structured", "paper")
_AGAINST = f"Policies to compare with: {POLICY_NAMES}, or {TUNED}.  [default: {', '.join(RIVALS[:-1])}]"
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Policies that learn: train in the simulator, compare, inspect, export."""


@command.command()
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of results.")
@click.option(
    "--space",
    type=click.Choice(["structured", "paper"]),
    default="structured",
    show_default=True,
    help="What an action is.",
)
@click.option(
    "--reward",
    type=click.Choice(["goodput", "paper"]),
    help="What it learns to increase.  [default: goodput for structured, else paper]",
)
@click.option(
    "--time",
    type=click.Choice(["per_iteration", "per_sample"]),
    help="Which time the reward paper counts.  [default: per_iteration]",
)
@click.option(
    "--learner", type=click.Choice(["clip", "simple"]), default="clip", show_default=True, help="How it learns."
)
@click.option(
    "--workers",
    multiple=True,
    type=click.IntRange(1, 1024),
    help="Workers per simulated cluster; several values take turns.",
)
@click.option("--windows", type=click.IntRange(1), help="Number of simulated windows to learn from.")
@click.option(
    "--environments", type=click.IntRange(1, 4096), help="Number of clusters that are simulated at the same time."
)
@click.option("--scenario", "scenarios", multiple=True, help="Train on these instead of random clusters.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in the folder.")
def train(out: Path, resume: bool, scenarios: tuple[str, ...], **chosen: Any) -> None:
    """Train a policy on simulated clusters.

    OUT gets policy.npz, learning.csv, learning.png, tensorboard/ and checkpoint.npz. Ctrl-C keeps the checkpoint;
    the same command with --resume continues from it.
    """
    _need_simulator()
    command = shlex.join(["dynamix", *sys.argv[1:]])
    load("dynamix_ps.cli.policy_train:train_from")(scenarios, chosen, out, resume, command, make_console())


@command.command("eval")
@click.argument("files", nargs=-1, type=_FILE)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    help="Name of a shipped scenario, or a YAML file.  [default: all shipped ones]",
)
@click.option("--against", multiple=True, type=PolicyName(TUNED), help=_AGAINST)
@click.option("--workers", type=click.IntRange(1, 1024), help="Change the scenarios to this number of workers.")
@click.option("--seeds", type=click.IntRange(2), default=20, show_default=True, help="Runs per policy and scenario.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--csv", "csv_file", type=_FILE, help="Write one line per run to this file.")
@click.option(
    "--png", "png_file", type=_FILE, help="Write a picture of the times, relative to the first of the other policies."
)
def evaluate(
    files: tuple[Path, ...],
    scenarios: tuple[str, ...],
    against: tuple[str, ...],
    workers: int | None,
    seeds: int,
    seed: int,
    csv_file: Path | None,
    png_file: Path | None,
) -> None:
    """Compare policies on simulated clusters: time to the target accuracy, over seeds.

    FILES are policy files. Without any, the shipped ones are compared.
    """
    _need_simulator()
    rivals = against or RIVALS[:-1]
    policies = {name: PolicySection(name="static" if name == TUNED else name) for name in rivals} | _learned(files)
    load("dynamix_ps.cli.policy_eval:compare")(policies, rivals[0], scenarios, workers, seeds, seed, csv_file, png_file)


def _learned(files: tuple[Path, ...]) -> dict[str, PolicySection]:
    """The policies of these files, or the shipped ones. Raises PolicyError."""
    if not files:
        return {f"ppo-{space}": PolicySection(name="ppo", ppo=Ppo.model_validate({"space": space})) for space in SPACES}
    return {str(file): policy_of(file) for file in files}


@command.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def inspect(file: Path, as_json: bool) -> None:
    """Show what a policy file is: where its weights come from, what it sees and what it does."""
    about = description(file, load_policy(file, None))
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    lines = _flat(about)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {text}")


def description(file: Path, stored: StoredPolicy) -> dict[str, Any]:
    """What `inspect` shows."""
    networks = {
        name: {
            "features": len(stored.spec.features[name]),
            "never known in training": [
                feature
                for feature, count in zip(stored.spec.features[name], weights.normaliser.count, strict=True)
                if count == 0
            ]
            if weights.normaliser is not None
            else [],
            "actions": list(stored.spec.actions[name]),
            "weights": int(weights.params.flat.size),
            "optimizer state": weights.adam is not None,
        }
        for name, weights in stored.networks.items()
    }
    return {
        "file": str(file),
        "bytes": file.stat().st_size,
        "kind": stored.spec.space,
        "hidden": stored.spec.hidden,
        "networks": networks,
        "provenance": dict(stored.provenance),
    }


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested names as one path each."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list):
        return [(name, ", ".join(map(str, value)) or "none")]
    return [(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))]


@command.command()
@click.argument("file", type=_FILE)
@click.argument("target", type=_FILE)
def export(file: Path, target: Path) -> None:
    """Copy a policy file without the optimizer's state, to about a third of its size.

    The copy can still be fine-tuned; the optimizer then starts from scratch.
    """
    stored = load_policy(file, None)
    networks = {name: dataclasses.replace(weights, adam=None) for name, weights in stored.networks.items()}
    save_policy(target, dataclasses.replace(stored, networks=networks))
    click.echo(f"{target}: {target.stat().st_size:,} bytes, from {file.stat().st_size:,}")


def _need_simulator() -> None:
    """Raises EnvironmentNotReady if a package is missing that only simulations need."""
    missing = [name for name in ("scipy", "gymnasium", "matplotlib", "tensorboardX") if find_spec(name) is None]
    if missing:
        raise EnvironmentNotReady(f"not installed: {', '.join(missing)}; pip install 'dynamix-ps[sim,plots]'")
