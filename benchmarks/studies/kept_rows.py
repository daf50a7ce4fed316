"""The rows of a simulated study in a CSV file: each cell's are written as soon as it ends, and a later call goes on."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from benchmarks.report.page import write_csv
from dynamix_ps.sim.contest.contest import Contest
from dynamix_ps.sim.contest.evaluate import SimulatedOutcome
from dynamix_ps.sim.parallel import parallel
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario

Row = dict[str, Any]


class KeptCell(Protocol):
    """A part of a study that runs by itself."""

    @property
    def title(self) -> str:
        """For progress."""
        ...

    @property
    def key(self) -> str:
        """What a row must come from to count for this cell; see `key_of`."""
        ...


Cell = TypeVar("Cell", bound=KeptCell)


def key_of(scenarios: Sequence[Scenario], *settings: Any) -> str:
    """Of all that decides the rows of a cell, but for the code."""
    text = "".join(map(dump_scenario, scenarios)) + json.dumps(settings, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_rows(file: Path) -> list[Row]:
    """All rows, every value as text; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def run_missing(
    cells: Sequence[Cell],
    run: Callable[[Cell], list[Row]],
    file: Path,
    limit_s: float = math.inf,
    processes: int | None = None,
) -> tuple[list[Row], int]:
    """Run the cells that have no rows in the file. Returns all rows that count, and how many cells are left.

    Args:
        run: gives the rows of a cell, at least one, all with the same columns. Two are added: `key`, and `took_s`, the
            CPU time of the cell. At the top level of a module, as cells run in several processes.
        limit_s: wait for no further cell after so many seconds.
        processes: cells at once; None: one per core.
    """
    began_s = time.monotonic()
    keys = {cell.key for cell in cells}
    rows = [row for row in read_rows(file) if row["key"] in keys]
    missing = [cell for cell in cells if cell.key not in {row["key"] for row in rows}]
    for done, (index, (found, took_s)) in enumerate(parallel(_Timed(run), missing, processes), start=1):
        cell = missing[index]
        rows += [row | {"key": cell.key, "took_s": f"{took_s:.1f}"} for row in found]
        write_csv(file, rows)
        print(f"{done}/{len(missing)} {cell.title}: {took_s:.1f} s", flush=True)
        if time.monotonic() - began_s > limit_s:
            return rows, len(missing) - done
    return rows, 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Timed:
    run: Callable[[Any], list[Row]]

    def __call__(self, cell: Any) -> tuple[list[Row], float]:
        began_s = time.process_time()
        return self.run(cell), time.process_time() - began_s


def took_s(rows: Sequence[Mapping[str, Any]]) -> float:
    """CPU time of the cells of these rows."""
    return sum({row["key"]: float(row["took_s"]) for row in rows}.values())


def contest_of(rows: Sequence[Row], scenario: str) -> Contest:
    """All runs on one scenario; rows have the columns of `Contest.rows`, as they are in memory or in a file."""
    outcomes = {}
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = sorted(
            (row for row in rows if (row["policy"], row["scenario"]) == (policy, scenario)),
            key=lambda row: int(row["seed"]),
        )
        figures = {
            field.name: np.array([float(row[field.name]) for row in mine])
            for field in dataclasses.fields(SimulatedOutcome)
            if field.name != "reached"
        }
        outcomes[policy, scenario] = SimulatedOutcome(
            reached=np.array([str(row["reached"]) == "True" for row in mine]), **figures
        )
    return Contest((scenario,), tuple(policy for policy, _ in outcomes), outcomes, {})
