"""The same training on every data plane and framework: what equal sizes cost there, and what adapting gains.

    python -m benchmarks.report.planes FOLDER --out benchmarks/results

FOLDER holds the tables of the grid `planes`. The figures of benchmarks/results/planes.md are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.report.grid_page import renew
from benchmarks.report.one_race import UNKNOWN, interval
from benchmarks.report.page import markdown
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Race,
    difference,
    final_value,
    relative_time,
    samples_per_s,
)
from benchmarks.suite.workloads import Workload, load_workloads

Row = dict[str, str]


def figures(among: Sequence[Race], folder: str) -> Sequence[str]:
    """One block in Markdown: what adapting gains on each plane, and where the workers' time goes."""
    return [
        f"`python -m benchmarks.report.planes {folder} --out benchmarks/results`.\n\n"
        f"### What the same policy gains everywhere\n\n{markdown(list(_gains(among)))}\n\n"
        f"### Where the workers' time goes\n\n{markdown(list(_parts(among)))}\n\n"
    ]


def plane_of(workload: Workload) -> str:
    """Framework and data plane, as in `torch, byteps`."""
    return f"{workload.framework}, {workload.comm}"


def _gains(among: Sequence[Race]) -> Iterator[Row]:
    workloads = load_workloads()
    for race in among:
        rates = [race.over_seeds(name, samples_per_s) for name in (STATIC, OURS)]
        yield {
            "scenario": race.scenario,
            "plane": plane_of(workloads[race.workload]),
            "seeds": str(len(race.common_seeds(STATIC, OURS))),
            "`static`, s to target": interval(race.time_s(STATIC, race.target), "{:.1f}"),
            "`ppo`, s to target": interval(race.time_s(OURS, race.target), "{:.1f}"),
            "t / t_static": interval(relative_time([race], OURS, STATIC)),
            "samples/s": " -> ".join(UNKNOWN if rate is None else f"{rate.value:,.0f}" for rate in rates),
            "accuracy, points": interval(difference(race, OURS, STATIC, final_value), "{:+.1f}", scale=100),
        }


def _parts(among: Sequence[Race]) -> Iterator[Row]:
    workloads = load_workloads()
    for race in among:
        for name in (STATIC, OURS):
            parts = np.mean([_shares(cell) for cell in race.entries[name].values()], axis=0)
            shares = zip(("computing", "push and pull", "waiting", "input"), parts, strict=True)
            yield {
                "scenario": race.scenario,
                "plane": plane_of(workloads[race.workload]),
                "sizes": f"`{name}`",
                **{part: f"{100 * share:.0f} %" for part, share in shares},
            }


def _shares(cell: CellResult) -> tuple[float, ...]:
    """Means over workers."""
    parts = [(one.compute, one.push_pull, one.wait, one.input) for one in cell.workers]
    return tuple(np.mean(parts, axis=0))


if __name__ == "__main__":
    raise SystemExit(renew("planes.md", __doc__, figures))
