"""A contest as a table, a CSV file and a plot."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.table import Table

from dynamix_ps.report.plots.plots import DOTS_PER_INCH
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import TUNED, Contest
from dynamix_ps.sim.contest.pictures import dots


def contest_table(contest: Contest) -> Table:
    """Time to the target per scenario and policy, the best in bold, with the number of failed runs."""
    table = Table(
        title="time to target accuracy in s (simulated), interquartile mean over seeds", caption=_caption(contest)
    )
    table.add_column("scenario")
    for name in contest.policies:
        table.add_column(name, justify="right")
    for scenario in contest.scenarios:
        values = {name: float(interquartile_mean(contest.counted_s(name, scenario)[None])) for name in contest.policies}
        best = min(values.values())
        cells = [_cell(contest, name, scenario, value, value == best) for name, value in values.items()]
        table.add_row(scenario, *cells)
    return table


def _cell(contest: Contest, policy: str, scenario: str, value_s: float, best: bool) -> str:
    missing = int((~contest.outcomes[policy, scenario].reached).sum())
    size = f" (b={contest.tuned_sizes[scenario]})" if policy == TUNED else ""
    text = f"{value_s:,.0f}{size}{'!' * bool(missing)}{missing or ''}"
    return f"[bold]{text}[/]" if best else text


def _caption(contest: Contest) -> str:
    late = any(not one.reached.all() for one in contest.outcomes.values())
    return "!n: n seeds never reached the target; they count with the longest time of the scenario" if late else ""


def write_rows(file: Path, contest: Contest) -> None:
    """One line per run. Raises OSError."""
    rows = list(contest.rows())
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def draw_contest(file: Path, contest: Contest, reference: Mapping[str, Array], what: str) -> None:
    """Plot times relative to a reference, per scenario and policy, with intervals.

    Args:
        reference: times by scenario, one per seed; they are plotted as 1.
        what: name of the reference, for the label.
    """
    from matplotlib.figure import Figure

    rng = np.random.default_rng(0)

    def relative(policy: str, scenario: str) -> Estimate:
        ratios = contest.counted_s(policy, scenario) / reference[scenario]
        return estimate(interquartile_mean, ratios[None], rng=rng)

    columns = {name: [relative(name, scenario) for scenario in contest.scenarios] for name in contest.policies}
    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    title = "Simulated time to target accuracy: interquartile mean over seeds, 95 % interval"
    dots(figure, contest.scenarios, columns, f"time relative to {what} (log scale; left is faster)", title)
    figure.savefig(file)
