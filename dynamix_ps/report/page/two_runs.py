"""Two runs on one page: their figures and settings side by side, the curves of both in one chart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dynamix_ps.config.schema import Config
from dynamix_ps.report.page import html_text as html
from dynamix_ps.report.page.charts import charts_of_two, drawn
from dynamix_ps.report.page.run_page import settings
from dynamix_ps.report.page.story import how_it_ended
from dynamix_ps.report.plots.history import History
from dynamix_ps.run_record.evaluations import shown

_SIDES = ("first", "second")


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run as its folder tells it. `summary`: what summary.json holds."""

    summary: dict[str, Any]
    config: Config
    history: History


def two_runs_page(first: ReadRun, second: ReadRun) -> str:
    """The page. Both count in the same unit."""
    names = [first.summary["run"], second.summary["run"]]
    charts = drawn(charts_of_two(_SIDES, [first.history, second.history]))
    body = [
        "<h1>Two runs</h1>\n",
        html.paragraphs(f"The {side} run: {name}." for side, name in zip(_SIDES, names, strict=True)),
        html.paragraphs(_sentences(first.summary, second.summary), "story"),
        html.table(("", *_SIDES, "ratio"), _figures(first.summary, second.summary)),
        html.chart_places(charts),
        html.heading("Settings that differ"),
        _differences(first.config, second.config),
    ]
    return html.page(f"{names[1]} compared with {names[0]}", body, charts)


def _sentences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    counted, rates = first["counted"], (first["samples_per_s"], second["samples_per_s"])
    if all(rates):
        yield (
            f"The second run trains {rates[1] / rates[0]:.2f} times the {counted}/s of the first: {rates[1]:,.0f} "
            f"against {rates[0]:,.0f}, means of the whole runs."
        )
    else:
        yield f"How fast the two runs are cannot be compared: one of them tells no {counted}/s."
    before_s, after_s = first["time_to_accuracy_s"], second["time_to_accuracy_s"]
    target = first["target_accuracy"]
    if target == second["target_accuracy"] and before_s is not None and after_s is not None:
        yield f"It reaches an accuracy of {100 * target:g} % after {after_s:.1f} s, the first after {before_s:.1f} s."


def _figures(first: dict[str, Any], second: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    counted = first["counted"]
    for name, key, spec in (
        (f"{counted} per second", "samples_per_s", ",.0f"),
        ("training time (s)", "train_s", ",.1f"),
        (counted, "samples", ",.0f"),
        ("iterations", "iterations", ",.0f"),
        ("time to the target accuracy (s)", "time_to_accuracy_s", ",.1f"),
        ("plans in force", "plans_applied", ",.0f"),
    ):
        yield _row(name, first[key], second[key], spec)
    before, after = (one["gain"]["samples_per_s_ratio"] for one in (first, second))
    yield _row("gain over the first sizes", before, after, ",.2f")
    yield _row("time spent waiting (%)", _waiting(first), _waiting(second), ",.1f")
    for name in dict.fromkeys((*first["metrics"], *second["metrics"])):
        old, new = (one["metrics"].get(name, {}).get("last") for one in (first, second))
        yield f"test {name}", shown(name, old), shown(name, new), _ratio(old, new)
    for name, key in (("policy", "policy"), ("workers", "workers"), ("data plane", "comm")):
        yield name, str(first[key]), str(second[key]), ""
    yield "batch sizes at the end", _sizes(first["batch_sizes_end"]), _sizes(second["batch_sizes_end"]), ""
    yield "end", how_it_ended(first), how_it_ended(second), ""


def _row(name: str, first: float | None, second: float | None, spec: str) -> tuple[str, str, str, str]:
    """A figure of both runs, and what the second is of the first."""
    old, new = ("-" if value is None else format(value, spec) for value in (first, second))
    return name, old, new, _ratio(first, second)


def _ratio(first: float | None, second: float | None) -> str:
    return f"{second / first:.2f}" if first and second is not None else ""


def _waiting(summary: dict[str, Any]) -> float | None:
    known = [value for value in summary["wait_fraction"] if value is not None]
    return 100 * sum(known) / len(known) if known else None


def _sizes(sizes: list[int | None]) -> str:
    return "/".join("-" if size is None else str(size) for size in sizes)


def _differences(first: Config, second: Config) -> str:
    sides = [dict(_flat(yaml.safe_load(settings(config)))) for config in (first, second)]
    keys = [key for key in dict.fromkeys((*sides[0], *sides[1])) if sides[0].get(key) != sides[1].get(key)]
    if not keys:
        return html.paragraphs(["None: both ran the same cluster file."])
    return html.table(("key", *_SIDES), ((key, *(side.get(key, "-") for side in sides)) for key in keys))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """`cluster.workers.0.batch` and its value, of everything below."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        yield from _flat(dict(enumerate(value)), path)
    else:
        yield path, " ".join(map(str, value)) if isinstance(value, list) else str(value)
