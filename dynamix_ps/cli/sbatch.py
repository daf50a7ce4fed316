"""`dynamix sbatch`: `dynamix launch` as a batch job of Slurm."""

from __future__ import annotations

import difflib
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from dynamix_ps.cli.launch import JobChoice, cluster_file, job_options, with_overrides
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.preflight.launch_checks import check_launch
from dynamix_ps.launch.targets.slurm.batch import batch_script
from dynamix_ps.launch.targets.slurm.options import LONG_NAMES, unknown_options
from dynamix_ps.policy.registry import findings

_HELP_S = 10.0  # of sbatch
_SBATCH, _COMMAND = f"{__name__}.sbatch", f"{__name__}.command"  # keys of click's context


class _BeforeSbatch(click.Command):
    """Takes the options that it knows by their exact names; all others before `--` are for sbatch, as they are."""

    ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        known = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        has_value = {name: not option.is_flag for option in known for name in option.opts}
        own: list[str] = []
        foreign: list[str] = []
        words = iter(args[:end])
        for word in words:
            name, equals, _ = word.partition("=") if word.startswith("--") else (word, "", "")
            if name not in has_value:
                foreign.append(word)
                continue
            own.append(word)
            if has_value[name] and not equals:
                own.extend(itertools.islice(words, 1))
        ctx.meta[_SBATCH], ctx.meta[_COMMAND] = tuple(foreign), tuple(args[end + 1 :])
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[SBATCH OPTIONS]", "--", "[CMD]..."]


@click.command(cls=_BeforeSbatch, context_settings={"help_option_names": ["-h", "--help"]})
@cluster_file(required=True)
@job_options
@click.option("--dry-run", "dry", is_flag=True, help="Print the batch script; submit nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    config_file: Path,
    job: JobChoice,
    dry: bool,
) -> int:
    """Check a cluster file, write the batch script that launches it on the nodes of a Slurm job, and submit it.

    Options of sbatch are written as sbatch takes them, with their full names; `:` separates the components of a
    heterogeneous job. What they leave open follows from the cluster file: a task for each worker, nodes, CPUs, and a
    notice 60 s before the time limit, at which the run ends in order. CMD is what every worker runs, as in
    `dynamix launch`.

    \b
    Example:
      dynamix sbatch -c cluster.yaml --nodes=2 --time=1:00:00 -- python train.py
    """
    options: tuple[str, ...] = ctx.meta[_SBATCH]
    cmd: tuple[str, ...] = ctx.meta[_COMMAND]
    _check_options(options, [name for param in ctx.command.params for name in param.opts])
    config = load_config(config_file, findings)
    config = with_overrides(config, job.run_dir, job.policy, job.mode, cmd, insecure=job.insecure)
    resume = job.resume and job.resume.absolute()
    given = {"--resume": resume, "--run-dir": job.run_dir, "--policy": job.policy, "--mode": job.mode}
    changes = [word for name, value in given.items() if value for word in (name, str(value))]
    changes += ["--insecure"] * job.insecure
    behind = ["--", *cmd] if cmd else []
    launch = [sys.executable, "-m", "dynamix_ps", "launch", "-c", str(config_file.absolute())]
    script = batch_script(config, options, [*launch, *changes, *behind])
    check_launch(config, job.resume)
    if dry:
        click.echo(script, nl=False)
        return 0
    return _submit(script)


def _check_options(options: Sequence[str], own: Collection[str]) -> None:
    """Raises UsageError for an option that nobody has. Plugins of Slurm add options: sbatch is asked for them."""
    strange = list(unknown_options(options))
    there = _options_here() if strange else ""
    for name in strange:
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", there):
            continue
        names = [other for other in (*own, *LONG_NAMES) if other.startswith("--")]
        longer = [other for other in names if other.startswith((name, f"-{name}"))] if len(name) > 2 else []
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {[*longer, *close][0]}?" if longer or close else "see `sbatch --help`"
        raise UsageError(f"{name}: neither dynamix sbatch nor Slurm's sbatch has this option; {hint}")


def _options_here() -> str:
    """What sbatch says of its options, those of plugins too; nothing where it is not installed."""
    if (sbatch := shutil.which("sbatch")) is None:
        return ""
    asked = [sbatch, "--help"]
    try:
        return subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_HELP_S, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise EnvironmentNotReady(f"`sbatch --help` did not end within {_HELP_S:g} s; see why") from error


def _submit(script: str) -> int:
    """Raises EnvironmentNotReady if there is no sbatch, or it refuses the script."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise EnvironmentNotReady("there is no sbatch here; log in where Slurm's programs are, or see --dry-run")
    done = subprocess.run([sbatch], input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "; ".join(done.stderr.strip().splitlines()) or f"exit code {done.returncode}"
        raise EnvironmentNotReady(f"sbatch refuses the job: {said}; see its script by --dry-run")
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    return 0
