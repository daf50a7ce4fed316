"""What two readings of DYNAMIX's reward come to, beside the paper's claims, from rehearsed runs. Pure.

A group is a workload, a cluster and a factor on the learning rate. Seeds that all contenders of a group have count.

- Targets: parts (TARGETS) of the way from the first evaluation to the best accuracy that each of the paper's static
  sizes reaches, medians over seeds. They follow from the runs, because the paper's targets are not known to us.
- Time: simulated seconds to a target over those of a static size with the same seed, geometric mean over targets and
  seeds, with the interval of a paired bootstrap. A run that never arrives counts with the longest time of its group to
  that target, or with its own end where that is later.
- Points: difference of the accuracy when the first contender of the group ends, so at equal time; or at the end of
  every training, after equal samples. The accuracy is the mean of an evaluation and its neighbours. A training whose
  loss became infinite counts as guessing.
- The best static size is that of the shortest time, known only afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.report.one_race import interval
from benchmarks.report.page import markdown
from benchmarks.report.papers import DYNAMIX
from dynamix_ps.rehearsal.comparison import ratio
from dynamix_ps.rehearsal.outcome import Outcome, Target
from dynamix_ps.run_record.evaluations import ACCURACY, Reached
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate
from dynamix_ps.sim.contest.pictures import dots

TARGETS = (0.7, 0.85, 0.98)
WORKERS = 4
SIZES_OF_PAPER = ("static-32", "static-64", "static-128")  # figure 2, second hand
STATICS = (*SIZES_OF_PAPER, "static-256")
BEST = "best static"
REFERENCES = (*SIZES_OF_PAPER, BEST)
PER_ITERATION, PER_SAMPLE, OURS = "paper, per iteration", "paper, per sample", "ppo"
LEARNED = (PER_ITERATION, PER_SAMPLE, OURS)
CONTENDERS = (*STATICS, *LEARNED)
_GUESSING = 0.1  # of ten classes

Row = dict[str, str]
Outcomes = Mapping[tuple[str, int], Outcome]  # by contender and seed


@dataclass(frozen=True)
class Group:
    """The runs of one workload, cluster and rate, of the seeds that all contenders have."""

    workload: str
    cluster: str
    rate: float  # factor on the workload's
    outcomes: Outcomes

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.cluster}, rate x{self.rate:g}"

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.outcomes}))

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        curves = {size: [smoothed(one) for one in self.runs(size)] for size in SIZES_OF_PAPER}
        first = float(np.median([curve[0] for each in curves.values() for curve in each]))
        reached = min(float(np.median([curve.max() for curve in each])) for each in curves.values())
        return tuple(Target(ACCURACY, first + part * (reached - first), higher_is_better=True) for part in TARGETS)

    @cached_property
    def times_s(self) -> Mapping[str, Array]:
        """Seconds that count; (targets, seeds) of every contender."""
        found = {name: np.empty((len(TARGETS), len(self.seeds))) for name in CONTENDERS}
        for place, target in enumerate(self.targets):
            arrived = {key: one.reached(target) for key, one in self.outcomes.items()}
            longest_s = max((at.time_s for at in arrived.values() if at), default=0.0)
            for name in CONTENDERS:
                found[name][place] = [
                    _counted_s(arrived[name, seed], self.outcomes[name, seed], longest_s) for seed in self.seeds
                ]
        return found

    @cached_property
    def best(self) -> str:
        """The static size of the shortest time."""
        return min(STATICS, key=lambda size: float(np.log(self.times_s[size]).mean()))

    def runs(self, contender: str) -> list[Outcome]:
        """One per seed."""
        return [self.outcomes[contender, seed] for seed in self.seeds]

    def time(self, contender: str, reference: str) -> Estimate:
        """Over that of a static size."""
        ours, theirs = (np.exp(np.log(self.times_s[name]).mean(axis=0)) for name in (contender, self._size(reference)))
        return ratio(ours, theirs)

    def points(self, contender: str, reference: str, *, at_end: bool = False) -> Estimate:
        """Of accuracy above a static size, at equal time or after equal samples."""
        values = self.values_at_end if at_end else self._values_at_equal_time
        gained = 100 * (values(contender) - values(self._size(reference)))
        return estimate(lambda drawn: drawn.mean(axis=(-2, -1)), gained[None], rng=np.random.default_rng(0))

    def missed(self, contender: str) -> int:
        """How often it did not reach a target."""
        return sum(one.reached(target) is None for one in self.runs(contender) for target in self.targets)

    def mean_size(self, contender: str) -> float:
        """Samples per worker and iteration."""
        sums = [one.curve[-1].samples / one.iterations for one in self.runs(contender) if one.curve]
        return float(np.mean(sums)) / WORKERS if sums else np.nan

    def values_at_end(self, contender: str) -> Array:
        """Accuracies, one per seed."""
        return np.array([_GUESSING if one.diverged else smoothed(one)[-1] for one in self.runs(contender)])

    def _values_at_equal_time(self, contender: str) -> Array:
        values = []
        for seed in self.seeds:
            end_s = min(self.outcomes[name, seed].train_s for name in CONTENDERS)
            one = self.outcomes[contender, seed]
            at = np.interp(end_s, [point.time_s for point in one.curve] or [0.0], smoothed(one))
            values.append(_GUESSING if one.diverged and one.train_s <= end_s else float(at))
        return np.array(values)

    def _size(self, reference: str) -> str:
        return self.best if reference == BEST else reference


def group_of(workload: str, cluster: str, rate: float, outcomes: Outcomes) -> Group | None:
    """The group with the seeds that are complete; None if none is."""
    complete = {seed for _, seed in outcomes if all((contender, seed) in outcomes for contender in CONTENDERS)}
    chosen = {key: one for key, one in outcomes.items() if key[1] in complete}
    return Group(workload, cluster, rate, chosen) if chosen else None


def smoothed(outcome: Outcome) -> Array:
    """Accuracies of the evaluations, each the mean of it and its neighbours; guessing where there is none."""
    values = [point.values[ACCURACY] for point in outcome.curve] or [_GUESSING]
    return np.array([np.mean(values[max(place - 1, 0) : place + 2]) for place in range(len(values))])


def _counted_s(arrived: Reached | None, outcome: Outcome, longest_s: float) -> float:
    return arrived.time_s if arrived else max(outcome.train_s, longest_s)


def tables(groups: Sequence[Group]) -> str:
    """All tables in Markdown."""
    parts = [
        "### Beside the paper\n\nTime over that of a static size, and points of accuracy above it at equal time: "
        "geometric mean of times and mean of points over all groups, in brackets the lowest and highest group.",
        markdown([*_claims(), *(_summary(name, groups) for name in LEARNED)]),
        "### Time to accuracy over that of static sizes",
        markdown([_times(group, name) for group in groups for name in LEARNED]),
        "### Points of accuracy above static sizes, at equal time; after equal samples",
        markdown([_points(group, name) for group in groups for name in LEARNED]),
        "### All contenders",
        markdown([_run(group, name) for group in groups for name in CONTENDERS]),
    ]
    return "\n\n".join(parts)


def _claims() -> Iterator[Row]:
    for one in DYNAMIX:
        claim = f"down to {one.time:.2f}" if one.bound else f"{one.time:.2f}"
        if one.points is not None:
            claim += f", {one.bound} {one.points:+.1f} points".replace(",  ", ", ")
        yield {"who": f"the paper: {one.training}", "static size not known": claim} | dict.fromkeys(REFERENCES, "")


def _summary(contender: str, groups: Sequence[Group]) -> Row:
    row = {"who": f"here: `{contender}`", "static size not known": ""}
    for reference in REFERENCES:
        times = np.array([group.time(contender, reference).value for group in groups])
        points = np.array([group.points(contender, reference).value for group in groups])
        mean = float(np.exp(np.log(times).mean()))
        of_times, of_points = (
            f" ({values.min():{form}} to {values.max():{form}})" if len(groups) > 1 else ""
            for values, form in ((times, ".2f"), (points, "+.1f"))
        )
        row[reference] = f"{mean:.2f}{of_times}, {points.mean():+.1f}{of_points} points"
    return row


def _head(group: Group, contender: str) -> Row:
    return {
        "workload": f"`{group.workload}`",
        "cluster": group.cluster,
        "rate": f"x{group.rate:g}",
        "seeds": str(len(group.seeds)),
        "who": f"`{contender}`",
    }


def _times(group: Group, contender: str) -> Row:
    row = _head(group, contender) | {one: interval(group.time(contender, one)) for one in REFERENCES}
    row[BEST] += f" ({group.best})"
    return row


def _points(group: Group, contender: str) -> Row:
    return _head(group, contender) | {
        reference: "; ".join(
            interval(group.points(contender, reference, at_end=at_end), "{:+.1f}") for at_end in (False, True)
        )
        for reference in REFERENCES
    }


def _run(group: Group, contender: str) -> Row:
    missed, runs = group.missed(contender), len(group.seeds) * len(TARGETS)
    time_s = float(np.exp(np.log(group.times_s[contender]).mean()))
    diverged = sum(one.diverged for one in group.runs(contender))
    return _head(group, contender) | {
        "mean size": f"{group.mean_size(contender):.0f}",
        "s to the targets": f"{time_s:.1f}",
        "targets reached": f"{runs - missed} of {runs}" + f", {diverged} diverged" * bool(diverged),
        "s in all": f"{np.mean([one.train_s for one in group.runs(contender)]):.1f}",
        "final accuracy (%)": f"{100 * group.values_at_end(contender).mean():.1f}",
    }


def draw_times(figure: Any, groups: Sequence[Group]) -> None:
    """Both readings in every group, one dot per static size; a dashed line is the paper's claim."""
    rows = [
        f"{group.title}: {name.removeprefix('paper, ')}" for group in groups for name in (PER_ITERATION, PER_SAMPLE)
    ]
    columns = {
        reference: [group.time(name, reference) for group in groups for name in (PER_ITERATION, PER_SAMPLE)]
        for reference in REFERENCES
    }
    title = "Simulated time over that of a static size; dashed: the paper's claim"
    dots(figure, rows, columns, "time over that of the static size", title)
    figure.axes[0].axvline(DYNAMIX[0].time, color="#777777", linewidth=1, linestyle="--")


def figures(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "workload": group.workload,
            "cluster": group.cluster,
            "rate": group.rate,
            "seeds": list(group.seeds),
            "best_static": group.best,
            "contenders": {
                name: {
                    "time": {one: group.time(name, one).value for one in REFERENCES},
                    "points_at_equal_time": {one: group.points(name, one).value for one in REFERENCES},
                    "points_at_end": {one: group.points(name, one, at_end=True).value for one in REFERENCES},
                    "mean_size": group.mean_size(name),
                }
                for name in LEARNED
            },
        }
        for group in groups
    ]
