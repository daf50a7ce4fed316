"""The page of the study of the paper's readings: beside the claims, by kind of group, and every group."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.one_race import interval
from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.agent.paper_mode_answers import REFERENCES, Answer, Readings
from benchmarks.studies.agent.paper_mode_cells import CLUSTERS, CONTENDERS, GROUPS, MODELS, RATES, READINGS, Group
from dynamix_ps.sim.contest.comparison import Estimate
from dynamix_ps.sim.contest.pictures import dots

STEM = "paper-mode"
Row = dict[str, str]
RATE_NAMES = {1.0: "tuned rate", 0.25: "a quarter of it"}


@dataclass(frozen=True, slots=True)
class Published:
    """One result of the paper: a time against that of static sizes, and points of accuracy gained."""

    training: str
    time: float  # t / t_static
    points: float | None = None
    bound: str = ""  # "up to" or "more than"


DYNAMIX = (
    Published("abstract, up to 32 nodes", 1 - 0.46, 6.3, "up to"),
    Published("VGG16, CIFAR-10, SGD, 8 nodes (second hand)", 652 / 853, 6.0),
    Published("VGG16, CIFAR-10, SGD, 16 nodes (second hand)", 479 / 543, 8.1),
    Published("VGG16, CIFAR-10, SGD, 32 nodes (second hand)", 421 / 734, 11.3),
    Published("VGG11, SGD (second hand)", 30 / 190, 0.0),
    Published("VGG11, Adam (second hand)", 30 / 80, 6.0),
)

# Groups that are alike in one thing, by that thing; the first are all of them
KINDS: Mapping[str, tuple[Group, ...]] = {
    "all": GROUPS,
    **{f"`{model}`": tuple(one for one in GROUPS if one.model == model) for model in MODELS},
    **{RATE_NAMES[rate]: tuple(one for one in GROUPS if one.rate == rate) for rate in RATES},
    **{f"`{cluster}`": tuple(one for one in GROUPS if one.cluster == cluster) for cluster in CLUSTERS},
}


def write_page(folder: Path, readings: Readings, told: str) -> None:
    """Renew the figures and the picture of the page; `told` is its first line.

    Raises UsageError if the page cannot be written.
    """
    parts = [
        told,
        "### Beside the paper\n\nTime over that of a static size, and points of accuracy above it. The paper's points "
        "stand in both columns, because we do not know at equal what they are.",
        markdown([*_claims(), *_pooled(readings)]),
        "### Time over that of static sizes, by kind",
        markdown([_of_kind(readings, kind, reading, "time") for kind in KINDS for reading in READINGS]),
        "### Points of accuracy above static sizes at equal time, by kind",
        markdown([_of_kind(readings, kind, reading, "at_equal_time") for kind in KINDS for reading in READINGS]),
        "### Points of accuracy above static sizes after equal samples, by kind",
        markdown([_of_kind(readings, kind, reading, "after_equal_samples") for kind in KINDS for reading in READINGS]),
    ]
    if runs := list(_runs(readings)):
        parts += ["### Every group", markdown(runs)]
    update_page(folder / f"{STEM}.md", "\n\n".join(parts) + "\n")
    draw(folder / f"{STEM}.png", lambda figure: draw_times(figure, readings))


def _claims() -> Iterator[Row]:
    """Points stand in both columns: it is not known at equal what."""
    for one in DYNAMIX:
        points = "" if one.points is None else f"{one.bound} {one.points:+.1f}".strip()
        yield {
            "who": f"the paper: {one.training}",
            "static size": "not known",
            "time": f"down to {one.time:.2f}" if one.bound else f"{one.time:.2f}",
            "points at equal time": points,
            "points after equal samples": points,
            "pairs": "",
            "miss a target": "",
            "time would show": "",
        }


def _pooled(readings: Readings) -> Iterator[Row]:
    for reading in READINGS:
        for reference in REFERENCES:
            answer = readings.answer(reading, reference, GROUPS)
            yield {
                "who": f"here: `{reading}`",
                "static size": reference,
                "time": interval(answer.time),
                "points at equal time": interval(answer.at_equal_time, "{:+.1f}"),
                "points after equal samples": interval(answer.after_equal_samples, "{:+.1f}"),
                "pairs": str(answer.pairs),
                "miss a target": str(answer.misses),
                "time would show": f"{100 * answer.shown:.2g} %" if math.isfinite(answer.shown) else "-",
            }


def _of_kind(readings: Readings, kind: str, reading: str, what: str) -> Row:
    answers = {reference: readings.answer(reading, reference, KINDS[kind]) for reference in REFERENCES}
    form = "{:.2f}" if what == "time" else "{:+.1f}"
    return {"groups": kind, "who": f"`{reading}`"} | {
        reference: interval(getattr(answer, what), form) for reference, answer in answers.items()
    }


def _runs(readings: Readings) -> Iterator[Row]:
    for group in GROUPS:
        best = readings.best_static(group)
        for contender in CONTENDERS:
            if (found := readings.summary(contender, group)) is not None:
                yield {
                    "workload": f"`{group.model}`",
                    "rate": f"x{group.rate:g}",
                    "cluster": f"`{group.cluster}`",
                    "who": f"`{contender}`" + ", best static" * (contender == best),
                    "seeds": str(found.seeds),
                    "mean size": f"{found.size:.0f}",
                    "s to the targets": f"{found.time_s:.2f}",
                    "targets missed": str(found.misses),
                    "s in all": f"{found.ended_s:.1f}",
                    "accuracy after all samples (%)": f"{100 * found.accuracy:.1f}",
                }


def draw_times(figure: Any, readings: Readings) -> None:
    """Both readings by kind of group, one dot per static size; a dashed line is the paper's claim."""
    places = [(kind, reading) for kind in KINDS for reading in READINGS]
    unknown = Estimate(math.nan, math.nan, math.nan)
    columns = {
        reference: [readings.answer(reading, reference, KINDS[kind]).time or unknown for kind, reading in places]
        for reference in REFERENCES
    }
    rows = [f"{kind.strip('`')}: {reading.removeprefix('paper, ')}" for kind, reading in places]
    title = "Rehearsed: simulated time over that of a static size, 95 % interval; dashed: the paper's claim"
    dots(figure, rows, columns, "time over that of the static size (left is faster)", title)
    figure.axes[0].axvline(DYNAMIX[0].time, color="#777777", linewidth=1, linestyle="--")


def figures(readings: Readings) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {"groups": kind.strip("`"), "who": reading, "static": reference}
        | _plain(readings.answer(reading, reference, KINDS[kind]))
        for kind in KINDS
        for reading in READINGS
        for reference in REFERENCES
    ]


def _plain(answer: Answer) -> dict[str, Any]:
    known = dataclasses.asdict(answer)
    return known | {"shown": answer.shown if math.isfinite(answer.shown) else None}
