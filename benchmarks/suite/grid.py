"""A grid: which scenarios, workloads, contenders and seeds meet, and in which order the cells run.

The grids that ship are in benchmarks/grids/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.suite.contenders import CONTENDERS, contender
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.workloads import load_workload, load_workloads
from dynamix_ps.config.validate import BrokenRule, load_model
from dynamix_ps.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "grids"
STATIC = "static"  # tuned: in a grid it stands for one contender per size

Names = Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]


class Grid(BaseModel):
    """Every scenario with every workload, contender and seed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
    about: str = ""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100)]
    scenarios: Names
    workloads: Names
    contenders: Names
    static_sizes: tuple[Annotated[int, Field(gt=0)], ...] = ()
    static_lr_factors: Annotated[tuple[Annotated[float, Field(ge=0.001, le=1000)], ...], Field(min_length=1)] = (1.0,)
    static_seeds: tuple[int, ...] = ()  # with these all sizes are tried, with others the best alone; none: with all
    side_contenders: tuple[str, ...] = ()  # those of the contenders that run with the side seeds alone
    side_seeds: tuple[int, ...] = ()

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """Seeds that run with every fixed size."""
        return self.static_seeds or self.seeds

    @property
    def static_entries(self) -> tuple[str, ...]:
        """`static-<size>`, or `static-<size>-x<factor>`, once per size and factor."""
        rates = ("" if factor == 1 else f"-x{factor:g}" for factor in self.static_lr_factors)
        return tuple(f"{STATIC}-{size}{rate}" for rate in rates for size in self.static_sizes)

    @property
    def single_contenders(self) -> tuple[str, ...]:
        """Contenders as cells name them: all fixed sizes in place of `static`."""
        return tuple(one for name in self.contenders for one in (self.static_entries if name == STATIC else (name,)))

    def cells(self) -> tuple[CellName, ...]:
        """In the order in which they run.

        All contenders of a scenario and workload run one after the other, once per seed, and with every seed another
        begins: a machine that gets slower or faster over the hours does so for all alike.
        """
        names, result = self.single_contenders, []
        for index, seed in enumerate(self.seeds):
            first = index * len(names) // len(self.seeds)
            turn = names[first:] + names[:first]
            for scenario in self.scenarios:
                for workload in self.workloads:
                    result += [CellName(scenario, workload, name, seed) for name in turn if self._meets(name, seed)]
        return tuple(result)

    def _meets(self, contender: str, seed: int) -> bool:
        return contender not in self.side_contenders or seed in self.side_seeds


def shipped() -> tuple[str, ...]:
    """Names of the grids that ship."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def load_grid(name_or_path: str | Path) -> Grid:
    """A grid that ships, by name, or one from a file.

    Raises:
        ConfigError: there is none, or one line per error in it, as FILE:LINE: key: what is wrong.
    """
    file = FOLDER / f"{name_or_path}.yaml" if str(name_or_path) in shipped() else Path(name_or_path)
    return load_model(file, Grid, _findings, examples=f"grids that ship: {', '.join(shipped())}")


def _findings(grid: Grid) -> Iterator[BrokenRule]:
    for key, values in grid:
        if not isinstance(values, tuple):
            continue
        for index, value in enumerate(values):
            if value in values[:index]:
                yield BrokenRule((key, index), "is in the list twice", value)
    yield from _unknown("scenarios", grid.scenarios, load_scenario)
    yield from _unknown("workloads", grid.workloads, load_workload)
    yield from _unknown("contenders", grid.contenders, contender)
    if (STATIC in grid.contenders) != bool(grid.static_sizes):
        message = f"there must be sizes to tune `{STATIC}` by if, and only if, it is among the contenders"
        yield BrokenRule(("static_sizes",), message, list(grid.static_sizes), (("contenders",),))
    for index, seed in enumerate(grid.static_seeds):
        if seed not in grid.seeds[: len(grid.static_seeds)]:
            yield BrokenRule(("static_seeds", index), "must be among the first of the seeds", seed, (("seeds",),))
    for index, size in enumerate(grid.static_sizes):
        for name in grid.workloads:
            yield from _out_of_bounds(index, size, name)
    yield from _over_ddp(grid)
    yield from _side(grid)


def _over_ddp(grid: Grid) -> Iterator[BrokenRule]:
    known = [name for name in grid.contenders if name in CONTENDERS and CONTENDERS[name].over_ddp]
    workloads = load_workloads()
    for index, name in enumerate(grid.workloads):
        if known and name in workloads and (why := workloads[name].no_ddp):
            message = f"{why}, which {' and '.join(known)} cannot train"
            yield BrokenRule(("workloads", index), message, name, (("contenders",),))


def _side(grid: Grid) -> Iterator[BrokenRule]:
    if bool(grid.side_contenders) != bool(grid.side_seeds):
        given = "side_contenders" if grid.side_contenders else "side_seeds"
        yield BrokenRule((given,), "side contenders need side seeds, and these need those", list(getattr(grid, given)))
    for index, name in enumerate(grid.side_contenders):
        if name == STATIC or name not in grid.contenders:
            message = f"must be one of the contenders, and not `{STATIC}`"
            yield BrokenRule(("side_contenders", index), message, name, (("contenders",),))
    for index, seed in enumerate(grid.side_seeds):
        if seed not in grid.seeds:
            yield BrokenRule(("side_seeds", index), "must be among the seeds", seed, (("seeds",),))


def _unknown(key: str, names: tuple[str, ...], find: Callable[[str], object]) -> Iterator[BrokenRule]:
    for index, name in enumerate(names):
        try:
            find(name)
        except ConfigError as error:
            yield BrokenRule((key, index), str(error), name)


def _out_of_bounds(index: int, size: int, workload: str) -> Iterator[BrokenRule]:
    try:
        found = load_workload(workload)
    except ConfigError:
        return  # said already
    if not found.min <= size <= found.max:
        message = f"must lie within {found.min}..{found.max}, the bounds of workload {workload}"
        yield BrokenRule(("static_sizes", index), message, size, (("workloads",),))
