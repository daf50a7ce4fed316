"""`dynamix rehearse`: compare policies with the user's own script, without the cluster."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from dynamix_ps.cli.options.one_value import one_value
from dynamix_ps.cli.options.policy_name import POLICY_NAMES
from dynamix_ps.config.load import check_rules, load_config
from dynamix_ps.config.policies import check_name
from dynamix_ps.config.schema import Config, PolicySection
from dynamix_ps.errors import EnvironmentNotReady, JobFailed, UsageError
from dynamix_ps.launch.preflight.launch_checks import check_command
from dynamix_ps.policy.registry import check_policy, findings, make_policy, policy_rng
from dynamix_ps.terminal import make_console, progress_bar

if TYPE_CHECKING:
    from dynamix_ps.rehearsal.comparison import Comparison
    from dynamix_ps.rehearsal.study import Study

REFERENCE = "static"


class _Names(click.ParamType[tuple[str, ...]]):
    """Names of policies, with commas in between."""

    name = "policies"

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            names = tuple(check_name(name.strip()) for name in value.split(","))
        except ValueError as error:
            self.fail(f"{error} (got {value!r})", param, ctx)
        return tuple(dict.fromkeys(names))


class _Target(click.ParamType[tuple[str | None, float | None]]):
    """`0.85`, `accuracy=0.85` or `loss`."""

    name = "target"

    def convert(
        self, value: str | tuple[str | None, float | None], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, float | None]:
        if isinstance(value, tuple):
            return value
        name, _, number = value.rpartition("=")
        try:
            return name or None, float(number)
        except ValueError:
            if name:
                self.fail(f"got {value!r}, expected a value, NAME=VALUE or NAME, such as accuracy=0.85", param, ctx)
            return number, None


@dataclass(frozen=True, slots=True)
class StudyChoice:
    """What the command line says about the runs of a study."""

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    seeds: int
    first_seed: int


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@one_value("chosen", StudyChoice)
@click.option("-c", "--config", "config_file", required=True, type=click.Path(path_type=Path), help="Cluster file.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    help="How fast workers and links are: a shipped scenario, a scenario file, or a recorded run, to which the "
    "simulator is fitted. May be given several times.  [default: the speeds of the cluster file]",
)
@click.option(
    "--policy",
    "policies",
    type=_Names(),
    default="ppo,goodput,static",
    show_default=True,
    help=f"Policies to compare, with commas in between: {POLICY_NAMES}.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=20, show_default=True, help="Runs of each policy.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first of them.")
@click.option(
    "--target",
    type=_Target(),
    help="Value of run.evaluate() to reach, such as 0.85 or loss=0.4.  [default: target_accuracy of the cluster file, "
    "else nearly what every run reaches]",
)
@click.option(
    "--against", help="Policy to compare the others with.  [default: static, if it takes part; else the last]"
)
@click.option(
    "--find-rate",
    is_flag=True,
    help="Compare learning rates in place of policies, by short runs, and tell whether that of the script is right.",
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: one per usable core]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the study; one that was begun goes on.  [default: a new one in run_dir]",
)
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def command(
    config_file: Path,
    chosen: StudyChoice,
    target: tuple[str | None, float | None] | None,
    against: str | None,
    find_rate: bool,
    jobs: int | None,
    out: Path | None,
    cmd: tuple[str, ...],
) -> int:
    """Compare policies by training CMD, without the cluster: gradients are real, times are simulated.

    CMD is the training script as it is, with the hook for torch. Each run is one process that computes for all workers.
    `{seed}` in CMD becomes the seed of the run, which also orders the samples.

    \b
    Example:
      dynamix rehearse -c cluster.yaml --scenario hl-schedule -- python train.py --seed {seed}
    """
    _need_simulator()
    from dynamix_ps.rehearsal.comparison import Comparison, choose_target
    from dynamix_ps.rehearsal.report import write_report
    from dynamix_ps.rehearsal.scenarios import scenario_for
    from dynamix_ps.rehearsal.study import Study

    config = load_config(config_file, findings)
    if config.later:
        raise UsageError(
            f"{config_file}: worker {min(config.later)} comes later, and a rehearsal has all workers from its "
            "beginning; remove `later`, or the worker"
        )
    if find_rate:
        return _find_rate(config, chosen.first_seed, cmd or config.command, out, jobs or _usable_cores())
    policies = chosen.policies
    reference = against or (REFERENCE if REFERENCE in policies else policies[-1])
    if reference not in policies:
        policies = (*policies, reference)
    argv = cmd or config.command
    check_command(argv)
    changed = [_with_policy(config, name) for name in policies]
    for one in changed:
        check_policy(one)
    study = Study(
        folder=(out or _new_folder(config, "rehearsal")).absolute(),
        config=config,
        scenarios=[scenario_for(config, name) for name in chosen.scenarios or (None,)],
        policies=policies,
        seeds=range(chosen.first_seed, chosen.first_seed + chosen.seeds),
        command=argv,
    )
    study.check_settings()
    _end_with_its_runs()
    console = make_console()
    console.print(f"study: {study.folder}", highlight=False, soft_wrap=True)
    for one in changed:
        make_policy(one, len(one.cluster.workers), policy_rng(one))
    _run_missing(console, study, jobs or _usable_cores())
    outcomes = study.outcomes()
    name, value = target or (None, config.target_accuracy)
    comparison = Comparison(outcomes, choose_target(outcomes, name, value), reference)
    _tell(console, study, comparison)
    console.print(f"report: {write_report(study, comparison)}", highlight=False, soft_wrap=True)
    return 0


def _run_missing(console: Console, study: Study, jobs: int) -> None:
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("rehearsed runs", total=len(study.runs), completed=len(study.outcomes()))
            study.run_missing(jobs, lambda done: bar.update(task, completed=done))
    except UsageError:  # a script that evaluates too seldom: to go on would not help
        raise
    except BaseException:  # Ctrl-C too
        console.print(
            f"{len(study.outcomes())} of {len(study.runs)} runs are over and kept; to go on, give the same command "
            f"with --out {study.folder}",
            markup=False,
            soft_wrap=True,
        )
        raise


def _tell(console: Console, study: Study, comparison: Comparison) -> None:
    from dynamix_ps.rehearsal.comparison import seeds_that_change_nothing
    from dynamix_ps.rehearsal.report import about, columns, sentence, table_rows

    for scenario in study.scenarios:
        standings = comparison.standings(scenario.name, study.policies)
        table = Table(title=f"{scenario.name}: simulated time to {comparison.target}")
        for place, column in enumerate(columns(comparison.reference)):
            table.add_column(column, justify="right" if place else "left", no_wrap=not place)
        for row in table_rows(standings):
            table.add_row(*row)
        console.print(table)
        console.print(about(study, scenario, comparison), highlight=False, soft_wrap=True)
        for one in standings:
            if one.policy != comparison.reference:
                console.print(sentence(one, comparison.reference), highlight=False, soft_wrap=True)
    if pair := seeds_that_change_nothing(comparison.outcomes):
        console.print(
            f"warning: seeds {pair[0].seed} and {pair[1].seed} of {pair[0].policy} came to the same values, so the "
            "script sets its own seeds, and the intervals are too narrow; pass it the seed: {seed} in its command",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _with_policy(config: Config, name: str) -> Config:
    """Raises ConfigError if the policy does not go with the rest of the file."""
    chosen = config.policy if name == config.policy.name else PolicySection(name=name)
    return check_rules(config.model_copy(update={"policy": chosen}), f"--policy {name}")


def _find_rate(config: Config, seed: int, argv: tuple[str, ...], out: Path | None, jobs: int) -> int:
    """A race of learning rates.

    Raises:
        UsageError: an option is for a comparison of policies, or the script does not suit.
        JobFailed: a run fails, or every rate breaks the training.
    """
    from dynamix_ps.rehearsal.rate_runs import RateRuns, race_config

    context = click.get_current_context()
    for name in ("scenarios", "policies", "seeds", "target", "against"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = next(one.opts[0] for one in context.command.params if one.name == name)
            raise UsageError(
                f"{option} is for a comparison of policies, and --find-rate compares rates; remove one of them"
            )
    check_command(argv)
    folder = (out or _new_folder(config, "rates")).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise EnvironmentNotReady(
            f"cannot make {folder}: {error.strerror or error}; give another folder with --out: a race makes a new one"
        ) from error
    _end_with_its_runs()
    console = make_console()
    console.print(f"race of rates: {folder}", highlight=False, soft_wrap=True)
    changed = race_config(config, seed).model_copy(update={"command": argv})
    race, rate = RateRuns(folder, changed).run(jobs)
    table = Table(title="learning rates after a short training of each")
    table.add_column("rate", justify="right")
    table.add_column("loss", justify="right")
    for octave, loss in sorted(race.losses.items()):
        table.add_row(f"{rate * 2.0**octave:.3g}", f"{loss:.5g}" if math.isfinite(loss) else "infinite")
    console.print(table)
    if (found := race.found()) is None:
        raise JobFailed("the loss became infinite at every rate of the race; start with a far lower one")
    console.print(found.sentence(rate), highlight=False, soft_wrap=True)
    return 0


def _end_with_its_runs() -> None:
    """At SIGTERM the runs end, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _new_folder(config: Config, kind: str) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path(config.run_dir) / f"{kind}-{config.name}-{stamp}-{secrets.token_hex(4)}"


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _need_simulator() -> None:
    missing = [name for name in ("scipy", "matplotlib", "torch") if find_spec(name) is None]
    if missing:
        raise EnvironmentNotReady(
            f"dynamix rehearse needs packages that are not installed: {', '.join(missing)}; "
            "pip install 'dynamix-ps[sim,plots]', and torch"
        )
