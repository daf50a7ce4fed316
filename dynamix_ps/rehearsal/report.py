"""The comparison of a study for people: a page with tables and pictures, and one line per run as CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from dynamix_ps.rehearsal.comparison import Comparison, Standing
from dynamix_ps.rehearsal.outcome import RehearsalOutcome
from dynamix_ps.rehearsal.scenarios import first_compute_s
from dynamix_ps.rehearsal.study import Study
from dynamix_ps.report.plots.plots import DOTS_PER_INCH
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Event

FEW_SEEDS = 5  # with fewer, an interval means little
REFERENCE_COLOUR = "#000000"
_COLUMNS = (
    "policy",
    "time to target (s)",
    "time / {reference}",
    "samples / {reference}",
    "s per sample / {reference}",
    "quicker in",
    "reached",
)


def write_report(study: Study, comparison: Comparison) -> Path:
    """Write report.md, runs.csv and the pictures into the folder of the study; returns the page. Raises OSError."""
    standings = {one.name: comparison.standings(one.name, study.policies) for one in study.scenarios}
    _write_rows(study.folder / "runs.csv", study, comparison)
    if len(study.policies) > 1:
        _draw_times(study.folder / "times.png", comparison, standings)
    _draw_curves(study.folder / "curves.png", study, comparison)
    page = study.folder / "report.md"
    page.write_text("\n\n".join(_parts(study, comparison, standings)) + "\n", encoding="utf-8")
    return page


def sentence(standing: Standing, reference: str) -> str:
    """Which is quicker, by how much, how surely."""
    time = standing.time
    if not standing.reached and not standing.reference_reached:
        return f"{standing.policy} against {reference}: neither reaches the target"
    if time.low == 1 == time.high:
        return f"{standing.policy} against {reference}: the same time in every seed"
    if time.low <= 1 <= time.high:
        told = "no difference that these seeds show"
        if math.isfinite(standing.shown):
            told += f"; one of {100 * standing.shown:.2g} % would show"
    else:
        part = 1 - time.value if time.value < 1 else time.value - 1
        told = f"{100 * part:.1f} % {'less' if time.value < 1 else 'more'} time"
    few = f"; {standing.seeds} seeds are few" if standing.seeds < FEW_SEEDS else ""
    return (
        f"{standing.policy} against {reference}: {told} (ratio {time}, quicker in {standing.quicker} of "
        f"{standing.seeds} seeds{few})"
    )


def table_rows(standings: Sequence[Standing]) -> list[list[str]]:
    """The cells of `columns`, one row per policy, the quickest first."""
    return [
        [
            one.policy,
            f"{one.time_s:,.1f}",
            str(one.time),
            str(one.samples or "-"),
            str(one.seconds_per_sample or "-"),
            f"{one.quicker} of {one.seeds}",
            f"{one.reached} of {one.seeds}",
        ]
        for one in sorted(standings, key=lambda standing: standing.time_s)
    ]


def about(study: Study, scenario: Scenario, comparison: Comparison) -> str:
    """What the scenario says of the first batches, which people can compare with their machines, and of changes that
    come too late."""
    fastest_s, slowest_s = first_compute_s(study.config, scenario)
    told = (
        f"The fastest of {scenario.n_workers} workers computes {1000 * fastest_s:.3g} ms for its first batch, the "
        f"slowest {1000 * slowest_s:.3g} ms."
    )
    outcomes = [outcome for run, outcome in comparison.outcomes.items() if run.scenario == scenario.name]
    if not scenario.trace or any(_comes(event, outcome) for event in scenario.trace for outcome in outcomes):
        return told
    return f"{told} None of the {len(scenario.trace)} changes of this scenario comes before training ends."


def _comes(event: Event, outcome: RehearsalOutcome) -> bool:
    """Whether the change comes while training runs."""
    if event.at_epoch is not None:
        return event.at_epoch < outcome.passes
    return event.at_s is not None and event.at_s < outcome.train_s


def columns(reference: str) -> list[str]:
    return [column.format(reference=reference) for column in _COLUMNS]


def _parts(study: Study, comparison: Comparison, standings: dict[str, list[Standing]]) -> Iterator[str]:
    reference = comparison.reference
    yield f"# Rehearsal of {study.config.name}: time to {comparison.target}"
    yield (
        "Gradients are real: one process trained the script's own model on the samples of all workers. Seconds are "
        "simulated, and evaluations take none. Ratios are geometric means over paired seeds with 95 % intervals."
    )
    for scenario in study.scenarios:
        rows = standings[scenario.name]
        yield f"## {scenario.name}\n\n{about(study, scenario, comparison)}"
        yield "\n".join(f"- {sentence(one, reference)}" for one in rows if one.policy != reference)
        header = columns(reference)
        lines = [header, ["---"] * len(header), *table_rows(rows)]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield "![times](times.png)\n\n" * (len(study.policies) > 1) + "![curves](curves.png)"
    yield "`runs.csv` has one line per run; every run has a folder of its own, for `dynamix report`."


def _write_rows(file: Path, study: Study, comparison: Comparison) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(
            ("scenario", "policy", "seed", "time_s", "samples_to_target", "train_s", "iterations", "plans", "diverged")
        )
        for run, outcome in comparison.outcomes.items():
            reached = outcome.reached(comparison.target)
            at = (f"{reached.time_s:.3f}", f"{reached.samples:.0f}") if reached else ("", "")
            rest = (f"{outcome.train_s:.3f}", outcome.iterations, outcome.plans, int(outcome.diverged))
            writer.writerow((run.scenario, run.policy, run.seed, *at, *rest))


def _draw_times(file: Path, comparison: Comparison, standings: dict[str, list[Standing]]) -> None:
    from matplotlib.figure import Figure

    policies = list(dict.fromkeys(one.policy for rows in standings.values() for one in rows))
    unknown = Estimate(np.nan, np.nan, np.nan)
    by_policy = {
        policy: [next((one.time for one in rows if one.policy == policy), unknown) for rows in standings.values()]
        for policy in policies
        if policy != comparison.reference
    }
    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    title = f"Simulated time to {comparison.target}: geometric mean over paired seeds, 95 % interval"
    dots(figure, list(standings), by_policy, f"time relative to {comparison.reference} (left is faster)", title)
    figure.savefig(file)


def _draw_curves(file: Path, study: Study, comparison: Comparison) -> None:
    """The value of the target over simulated time: a thin line per run, and the median of each policy.

    Policies have the colours of the other picture, the reference is black.
    """
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    figure.set_size_inches(6.5, 3.6 * len(study.scenarios))
    name, others = comparison.target.name, [one for one in study.policies if one != comparison.reference]
    colours = {comparison.reference: REFERENCE_COLOUR} | dict(zip(others, cycle(WORKER_COLOURS), strict=False))
    for axes, scenario in zip(np.atleast_1d(figure.subplots(len(study.scenarios), 1)), study.scenarios, strict=True):
        for covered, (policy, colour) in zip(reversed(range(len(colours))), colours.items(), strict=True):
            runs = [
                outcome
                for run, outcome in comparison.outcomes.items()
                if run.scenario == scenario.name and run.policy == policy and outcome.curve
            ]
            for outcome in runs:
                axes.plot(*_curve(outcome, name), color=colour, alpha=0.2, linewidth=0.7)
            look = {"color": colour, "linewidth": 1.4 + 0.7 * covered, "label": policy}  # seen below others, too
            _draw_median(axes, [_curve(outcome, name) for outcome in runs], look)
        axes.axhline(comparison.target.value, color="#777777", linewidth=1, linestyle="--")
        axes.set_title(scenario.name, loc="left", fontsize="medium")
        axes.set_xlabel("simulated seconds of training")
        axes.set_ylabel(name)
        axes.grid(color="#e5e5e5")
        axes.legend(fontsize="small")
    figure.savefig(file)


def _curve(outcome: RehearsalOutcome, name: str) -> tuple[list[float], list[float]]:
    points = [point for point in outcome.curve if name in point.values]
    return [point.time_s for point in points], [point.values[name] for point in points]


def _draw_median(axes: Any, curves: Sequence[tuple[list[float], list[float]]], look: dict[str, Any]) -> None:
    """Over the time that all of them cover."""
    known = [(times, values) for times, values in curves if times]
    if not known:
        return
    begin, end = max(times[0] for times, _ in known), min(times[-1] for times, _ in known)
    at = np.linspace(begin, end, 200) if begin < end else np.array([begin])
    middle = np.median([np.interp(at, times, values) for times, values in known], axis=0)
    axes.plot(at, middle, **look)
