"""The folder of a grid: what was run, results, logs. One `bench run` at a time works in it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.suite.grid import Grid, load_grid
from benchmarks.suite.results import CellName, CellResult, read_result, write_result
from benchmarks.suite.tables import CELLS, read_tables
from benchmarks.suite.tuning import beaten
from dynamix_ps.config.yaml_lines import Dumper
from dynamix_ps.errors import EnvironmentNotReady, UsageError

_PATIENCE_S = 60.0  # for the last cell of a runner that was killed
_POLL_S = 0.2


class GridFolder:
    """`grid.yaml`, `cells/<cell>.json`, `logs/<cell>.log`, and what is made of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = path / "cells"
        self.logs = path / "logs"
        self.grid_file = path / "grid.yaml"

    def log_file(self, cell: CellName) -> Path:
        return self.logs / f"{cell}.log"

    def result_file(self, cell: CellName) -> Path:
        return self.cells / f"{cell}.json"

    def result(self, cell: CellName) -> CellResult | None:
        """The result of a cell, None before it has run. Raises UsageError for a damaged file."""
        file = self.result_file(cell)
        if not file.exists():
            return None
        try:
            return read_result(file)
        except (OSError, ValueError) as error:
            raise UsageError(str(error)) from error

    def beaten(self, grid: Grid) -> set[CellName]:
        """Cells that need not run (tuning.py). Raises UsageError."""
        if set(grid.tuning_seeds) == set(grid.seeds):
            return set()
        tried = (self.result(cell) for cell in grid.cells() if cell.seed in grid.tuning_seeds)
        return beaten(grid, [result for result in tried if result is not None])

    def grid(self) -> Grid:
        """The grid that was run here. Raises ConfigError."""
        return load_grid(self.grid_file)

    def adopt(self, grid: Grid) -> None:
        """Make the folder, which must be held, one of this grid. A grid may have gained cells since its first run.

        Where only the tables of an earlier run are left, as in benchmarks/results, the results come from them.

        Raises:
            UsageError: the folder holds another grid.
            EnvironmentNotReady: it cannot be written.
        """
        if self.grid_file.exists():
            lost = [str(cell) for cell in self.grid().cells() if cell not in set(grid.cells())]
            if lost:
                raise UsageError(
                    f"{self.path}: holds a grid of which {len(lost)} cells are not in this one, {lost[0]} for example; "
                    "give another folder by --out"
                )
        try:
            self.prepare()
            data = grid.model_dump(mode="json", exclude_defaults=True)
            self.grid_file.write_text(yaml.dump(data, Dumper=Dumper, sort_keys=False, width=120), encoding="utf-8")
        except OSError as error:
            raise EnvironmentNotReady(f"{self.path}: cannot be written: {error}") from error

    def prepare(self) -> None:
        """Make what lies in the folder, which must be held. Where only tables are left, the results come from them.

        Raises OSError if it cannot be written, UsageError if the tables are damaged.
        """
        for folder in (self.cells, self.logs):
            folder.mkdir(exist_ok=True)
        if any(self.cells.iterdir()) or not (self.path / CELLS).exists():
            return
        for result in read_tables(self.path):
            write_result(self.cells, result)

    @contextmanager
    def held(self, on_wait: Callable[[], None]) -> Iterator[int]:
        """Keep others out of the folder while the context lasts; make the folder if need be.

        Yields a descriptor that cells inherit: a cell whose runner was killed keeps the folder until it has ended.

        Raises:
            UsageError: somebody else works in it and does not come to an end.
            EnvironmentNotReady: it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("w")
        except OSError as error:
            raise EnvironmentNotReady(f"{self.path}: cannot be written: {error}") from error
        with file:
            deadline = time.monotonic() + _PATIENCE_S
            waited = False
            while not _locked(file.fileno()):
                if not waited:
                    on_wait()
                    waited = True
                if time.monotonic() > deadline:
                    raise UsageError(f"{self.path}: another `dynamix bench run` works here; wait for it or end it")
                time.sleep(_POLL_S)
            yield file.fileno()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
