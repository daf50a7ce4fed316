"""`dynamix sim`: make the simulator resemble real runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from dynamix_ps.errors import EnvironmentNotReady, UsageError

FEWEST_TO_LEAVE_OUT = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The simulator in which policies are trained and compared."""


@command.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the scenario to this YAML file.  [default: standard output]",
)
@click.option("--name", default="calibrated", show_default=True, help="Name of the scenario.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the simulated runs.")
def calibrate(runs: Sequence[Path], out: Path | None, name: str, seed: int) -> None:
    """Fit the simulator to RUNS, and say how well it fits.

    RUNS are run folders or recordings of one cluster and one training. Runs with different batch sizes tell most: what
    a sample costs, and what a larger batch gains. With several runs, each one is also predicted from the others alone.
    The scenario can be given to `dynamix policy train` and `eval`.

    \b
    Example:
      dynamix sim calibrate runs/static-* runs/proportional-* -o my-cluster.yaml
    """
    if find_spec("scipy") is None:
        raise EnvironmentNotReady("dynamix sim needs scipy, which is not installed; pip install 'dynamix-ps[sim]'")
    import numpy as np
    from rich.console import Console

    from dynamix_ps.sim.calibration import calibrate as fits
    from dynamix_ps.sim.calibration.prediction import leave_one_out, predict, table
    from dynamix_ps.sim.calibration.series import series_of
    from dynamix_ps.sim.recorded import read_run
    from dynamix_ps.sim.scenario.load import dump_scenario

    rng = np.random.default_rng(seed)
    recorded = [read_run(path) for path in runs]
    series = [series_of(run) for run in recorded]
    template = fits.scenario_of(name, recorded, series)
    scenario = fits.calibrate(template, series)
    console = Console()
    console.print(table("runs used for the fit", [predict(scenario, run, rng) for run in series]))
    if len(series) >= FEWEST_TO_LEAVE_OUT:
        others = zip(leave_one_out(template, series), series, strict=True)
        predicted = [predict(of_others, run, rng) for of_others, run in others]
        console.print(table("each run, predicted from the others", predicted))
    if out is None:
        click.echo(dump_scenario(scenario), nl=False)
        return
    try:
        out.write_text(dump_scenario(scenario), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {out}: {error.strerror or error}; give a file that can be written") from error
    console.print(f"scenario: {out}", highlight=False, soft_wrap=True)
