"""One race in Markdown: its tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.report import pictures
from benchmarks.report.page import markdown
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import (
    STATIC,
    Figure,
    Race,
    difference,
    final_value,
    global_batch,
    improvement,
    relative_time,
    samples_per_s,
    samples_to,
    value_at_samples,
    value_at_time,
)
from dynamix_ps.sim.contest.comparison import Estimate

UNKNOWN = "n/a"
PICTURES: Mapping[str, tuple[str, Callable[[Any, Race], None]]] = {
    "accuracy": ("Test results over time", pictures.test_results),
    "batch-sizes": ("Batch sizes over time", pictures.batch_sizes),
    "step-time": ("Where the workers' time went", pictures.step_time),
}


def picture_name(race: Race, kind: str) -> str:
    """The name of the picture's file."""
    return f"{race.scenario}--{race.workload}--{kind}.png"


def race_section(race: Race) -> str:
    """Times to the thresholds, results after equal time and equal samples, and what the time was spent on."""
    images = {kind: f"![{what}: {race.name}]({picture_name(race, kind)})" for kind, (what, _) in PICTURES.items()}
    parts = [f"## {race.name}", _tuning(race), images["accuracy"], _times(race), _values(race)]
    return "\n\n".join(part for part in (*parts, images["step-time"], _costs(race), images["batch-sizes"]) if part)


def interval(one: Estimate | None, form: str = "{:.2f}", scale: float = 1.0) -> str:
    """A value with its interval, or the value alone where there is no interval, as with few seeds."""
    if one is None:
        return UNKNOWN
    value, low, high = (form.format(scale * number) for number in (one.value, one.low, one.high))
    return value if one.low == one.high else f"{value} [{low}, {high}]"


def chance(one: float | None) -> str:
    """A probability."""
    return UNKNOWN if one is None else f"{one:.2f}"


def faster(one: Estimate | None) -> str:
    """1 - t / t_ref in percent."""
    return UNKNOWN if one is None else f"{round(100 * (1 - one.value))} %"


def _tuning(race: Race) -> str:
    if not race.sizes:
        return ""
    by_size = sorted(race.sizes, key=lambda name: (len(name), name))
    times = ", ".join(f"{name.removeprefix(STATIC + '-')}: {race.size_s(name, race.target):.1f} s" for name in by_size)
    return (
        f"`{STATIC}` is `{race.tuned}` here, the best of the {len(race.sizes)} fixed sizes that were tried ({times}; "
        f"seeds: {len(race.tried(race.tuned))})."
    )


def _times(race: Race) -> str:
    return markdown([_time_row(race, name) for name in race.ranking()])


def _time_row(race: Race, name: str) -> dict[str, str]:
    row = {"contender": f"`{name}`"}
    for threshold in race.thresholds:
        target = " (target)" if threshold == race.target else ""
        row[f"s to {race.metric.in_short(threshold)}{target}"] = interval(race.time_s(name, threshold), "{:.1f}")
    row["reached target"] = f"{race.arrived(name)} of {len(race.entries[name])}"
    if race.tuned:
        itself = name == STATIC
        relative = relative_time([race], name, STATIC)
        row[f"t / t_{STATIC}"] = "1" if itself else interval(relative)
        row[f"faster than {STATIC}"] = "" if itself else faster(relative)
        row["probability of improvement"] = "" if itself else chance(improvement([race], name, STATIC))
    return row


def _values(race: Race) -> str:
    """The metric at the end, and on equal terms."""
    time_s, samples = race.first_arrival()
    metric = race.metric

    def over_seeds(name: str, figure: Figure) -> str:
        return interval(race.over_seeds(name, figure), metric.form, metric.scale)

    def row(name: str) -> dict[str, str]:
        gain = difference(race, name, STATIC, final_value) if race.tuned and name != STATIC else None
        signed = metric.form.replace(":", ":+")
        return {
            "contender": f"`{name}`",
            f"final {metric.title}": over_seeds(name, final_value),
            f"{metric.above} {STATIC}": "" if name == STATIC else interval(gain, signed, metric.scale),
            f"{metric.title} after {time_s:.1f} s": over_seeds(name, lambda cell: value_at_time(cell, time_s)),
            f"{metric.title} after {samples:,.0f} samples": over_seeds(
                name, lambda cell: value_at_samples(cell, samples)
            ),
        }

    return markdown([row(name) for name in race.ranking()])


def _costs(race: Race) -> str:
    """Means over seeds; the network, the controller and the safety net included."""
    columns: dict[str, tuple[Callable[[CellResult], float | None], str, float]] = {
        "global batch": (global_batch, "{:.0f}", 1),
        "samples to target": (lambda cell: samples_to(cell, race.target), "{:,.0f}", 1),
        "samples per s": (samples_per_s, "{:,.0f}", 1),
        "time waiting (%)": (lambda cell: cell.wait_fraction, "{:.1f}", 100),
        "spread of computing times (%)": (lambda cell: cell.compute_spread, "{:.0f}", 100),
        "plans": (lambda cell: cell.plans, "{:.1f}", 1),
        "decision p50 (ms)": (lambda cell: cell.decision_p50_ms, "{:.2f}", 1),
        "decision p99 (ms)": (lambda cell: cell.decision_p99_ms, "{:.2f}", 1),
        "machine before (GFLOP/s)": (lambda cell: cell.machine_gflop_per_s, "{:.1f}", 1),
        "windows of the safety net": (lambda cell: cell.fallback_windows, "{:.1f}", 1),
    }

    def row(name: str) -> dict[str, str]:
        found = {what: race.over_seeds(name, figure) for what, (figure, _, _) in columns.items()}
        return {"contender": f"`{name}`"} | {
            what: UNKNOWN if one is None else columns[what][1].format(columns[what][2] * one.value)
            for what, one in found.items()
        }

    return markdown([row(name) for name in race.ranking()])
