"""Fixed sizes of the study of the agent: on every cluster more are tried until the best lies inside. Pure.

Half, one and two times the first sizes are tried everywhere. Where the smallest or the largest of those tried is the
best, half or twice as much is next, with the same seeds, as far as the workload's bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.studies.agent.answers import Runs
from benchmarks.studies.agent.cells import BEST_STATIC, QUESTIONS, STATICS, WORKLOADS, fixed_size, fixed_size_cell
from benchmarks.studies.rehearsed_cells import Cell, Name

FURTHER = {f"static-x{factor:g}": factor for factor in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 4.0, 8.0, 16.0, 32.0)}
FIXED_SIZES = dict(sorted((STATICS | FURTHER).items(), key=lambda one: one[1]))


SCENARIOS_OF_SIZES = tuple(
    dict.fromkeys(one for question in QUESTIONS if question.reference == BEST_STATIC for one in question.scenarios)
)


def further_sizes(cells: Sequence[Cell], runs: Runs) -> list[Cell]:
    """Cells that are to be added to those of the questions, as far as the runs tell."""
    return [
        cell
        for scenario in SCENARIOS_OF_SIZES
        for workload in WORKLOADS
        for cell in _of_stratum(workload, scenario, _seeds(cells, workload, scenario), runs)
    ]


def next_size(workload: str, log_s: Mapping[str, float]) -> str | None:
    """The size to try next, by the times of those tried; None: the best lies inside, or at a bound of the workload."""
    names = list(FIXED_SIZES)
    tried = sorted(names.index(name) for name in log_s)
    best = names.index(min(log_s, key=lambda name: log_s[name]))
    if best not in (tried[0], tried[-1]):
        return None
    place = best + (1 if best == tried[-1] else -1)
    bounds = WORKLOADS[workload]
    within = 0 <= place < len(names) and bounds.min <= fixed_size(bounds, FIXED_SIZES[names[place]]) <= bounds.max
    return names[place] if within else None


def not_bracketed(runs: Runs) -> int:
    """On how many clusters, counted once per workload, the size beyond the best one has not been tried."""
    found = [(workload, runs.fixed_sizes(workload, one)) for workload in WORKLOADS for one in SCENARIOS_OF_SIZES]
    return sum(not times or next_size(workload, times) is not None for workload, times in found)


def _seeds(cells: Sequence[Cell], workload: str, scenario: str) -> list[int]:
    """With which every fixed size is tried there."""
    return [cell.name.seed for cell in cells if cell.name[:3] == (workload, scenario, "static")]


def _of_stratum(workload: str, scenario: str, seeds: Sequence[int], runs: Runs) -> Iterator[Cell]:
    tried = list(STATICS)
    while set(tried) <= (times := runs.fixed_sizes(workload, scenario)).keys():
        size = next_size(workload, {name: times[name] for name in tried})
        if size is None:
            return
        yield from (fixed_size_cell(Name(workload, scenario, size, seed), FIXED_SIZES[size]) for seed in seeds)
        tried.append(size)
