"""What the papers report beside what a grid measured: one quantity per column.

    python -m benchmarks.report.papers FOLDER --out benchmarks/results

FOLDER holds the tables of a grid. The figures of benchmarks/results/papers.md are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.report.grid_page import renew
from benchmarks.report.one_race import UNKNOWN, interval
from benchmarks.report.page import markdown
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Race,
    difference,
    final_value,
    relative_time,
)

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Published:
    """One result of a paper: a time against that of static sizes, and points of accuracy gained."""

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
DYNAMIC_BATCHING = (
    Published("ResNet-50, CIFAR-10, H-level 2", 1 / 2),
    Published("ResNet-50, CIFAR-10, H-level 10", 1 / 2.4),
    Published("MNIST CNN, slow end of its range", 1 / 2),
    Published("MNIST CNN, fast end of its range", 1 / 4),
    Published("ResNet-50, GPU and 48-core CPU", 1 / 4, bound="more than"),
    Published("ResNet-50, two T4 and two P4", 20 / 90),
    Published("linear regression", 1 / 1.15),
)


def figures(among: Sequence[Race], folder: str) -> Sequence[str]:
    """Both tables in Markdown, one block."""
    dynamix = [*_published(DYNAMIX), *_measured(among, OURS), *_measured(among, "ppo-paper")]
    batching = [*_published(DYNAMIC_BATCHING), *_measured(among, "pid"), *_measured(among, OURS)]
    return [
        f"`python -m benchmarks.report.papers {folder} --out benchmarks/results`.\n\n"
        f"### DYNAMIX (arXiv 2510.08522)\n\n{markdown(dynamix)}\n\n"
        f"### Dynamic batching (arXiv 2305.12213)\n\n{markdown(batching)}\n\n"
    ]


def _published(results: Sequence[Published]) -> Iterator[Row]:
    for one in results:
        yield {
            "who": "the paper",
            "training": one.training,
            "t / t_static": f"{one.time:.2f}",
            "faster, 1 - t / t_static": f"{one.bound} {100 * (1 - one.time):.0f} %".strip(),
            "times as fast": f"{one.bound} {1 / one.time:.1f}".strip(),
            "accuracy, points": UNKNOWN if one.points is None else f"{one.bound} {one.points:+.1f}".strip(),
        }


def _measured(among: Sequence[Race], contender: str) -> Iterator[Row]:
    for race in among:
        found = relative_time([race], contender, STATIC)
        if found is None:
            continue
        seeds = len(race.common_seeds(contender, STATIC))
        yield {
            "who": f"here, `{contender}`",
            "training": f"{race.name}, against {race.tuned}, {seeds} seed{'s' * (seeds > 1)}",
            "t / t_static": interval(found),
            "faster, 1 - t / t_static": f"{round(100 * (1 - found.value))} %",
            "times as fast": f"{1 / found.value:.1f}",
            "accuracy, points": interval(difference(race, contender, STATIC, final_value), "{:+.1f}", scale=100),
        }


if __name__ == "__main__":
    raise SystemExit(renew("papers.md", __doc__, figures))
