"""A scenario of the bed as the simulator has it: cores become seconds, and the schedule becomes events.

A worker with c cores of CPU time per second needs 1/c of the time of a whole core. What a whole core needs is fitted to
cells with fixed sizes. Where links are not limited, whole iterations are fitted, and their exchange is in the fixed
part: it takes CPU time too, and longer where workers have fewer cores. Where links are limited, computing alone is
fitted, as the cost model has the exchange. The machine was faster and slower from cell to cell, so times are converted
by the speed that each cell measured before it began (machine_speed.py). That speed does not compare processors: fit to
cells of the processor in question.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.suite.results import CellResult
from benchmarks.suite.scenario import LinkSettings
from benchmarks.suite.scenario import Scenario as BedScenario
from dynamix_ps.config.schema import OWN_HOST
from dynamix_ps.sim.scenario.load import Scenario

JITTER = 0.03  # of computing times, fitted to seven recorded runs of uneven workers (benchmarks/recorded)
_BYTES_PER_MBIT = 125_000.0


class CoreTimes(NamedTuple):
    """Seconds that a whole core computes, per iteration and per sample, while the machine has this speed."""

    fixed_s: float
    per_sample_s: float
    gflop_per_s: float

    def at(self, gflop_per_s: float) -> CoreTimes:
        """The same while the machine has another speed."""
        factor = self.gflop_per_s / gflop_per_s
        return CoreTimes(self.fixed_s * factor, self.per_sample_s * factor, gflop_per_s)


def core_times(cells: Iterable[CellResult], cores: Mapping[str, Sequence[float]]) -> CoreTimes:
    """Fitted to whole iterations of cells in which all workers had one size that did not change.

    An iteration lasts as long as the worker with the fewest cores needs.

    Args:
        cores: of all workers, by scenario.

    Raises ValueError if they are all of one size, or the machine's speed is not known of one of them.
    """
    known = list(cells)
    times_s = [min(cores[cell.name.scenario]) * iteration_s(cell) for cell in known]
    return _fitted(known, [cell.sizes[-1].sizes[0] for cell in known], times_s)


def computing_times(cells: Iterable[CellResult], cores: Sequence[float]) -> CoreTimes:
    """Fitted to the computing of cells in which workers with these cores had sizes that did not change.

    The worker that computes longest counts: a CPU quota lets the others, which wait, compute faster.

    Raises ValueError as `core_times` does.
    """
    known = list(cells)
    sizes, times_s = [], []
    for cell in known:
        longest = max(cell.workers, key=lambda worker: worker.compute)
        sizes.append(cell.sizes[-1].sizes[longest.rank])
        times_s.append(cores[longest.rank] * longest.compute * iteration_s(cell))
    return _fitted(known, sizes, times_s)


def iteration_s(cell: CellResult) -> float:
    """Mean duration of an iteration of a cell whose sizes did not change."""
    last = cell.curve[-1]
    return last.time_s * sum(cell.sizes[-1].sizes) / last.samples


def _fitted(cells: Sequence[CellResult], sizes: Sequence[float], times_s: Sequence[float]) -> CoreTimes:
    if len(set(sizes)) < 2:
        raise ValueError(f"got cells of the sizes {sorted(set(sizes))}, expected at least two sizes")
    gflop_per_s = median_speed(cells)
    alike_s = [time_s * speed_of(cell) / gflop_per_s for cell, time_s in zip(cells, times_s, strict=True)]
    per_sample_s, fixed_s = np.polyfit(sizes, alike_s, 1)
    return CoreTimes(max(float(fixed_s), 0.0), float(per_sample_s), gflop_per_s)


def speed_of(cell: CellResult) -> float:
    """GFLOP/s of the machine just before this cell. Raises ValueError if it is not known."""
    if cell.machine_gflop_per_s is None:
        raise ValueError(f"{cell.name}: the speed of the machine is not known, so its times cannot be converted")
    return cell.machine_gflop_per_s


def median_speed(cells: Iterable[CellResult]) -> float:
    """Of these cells. Raises ValueError if one of them does not know it."""
    return statistics.median(map(speed_of, cells))


def simulated(bed: BedScenario, core: CoreTimes, lasting_s: float) -> Scenario:
    """The same cluster in the simulator, for trainings of at most `lasting_s` seconds."""
    links = [bed.links.get(f"worker-{rank}") for rank in range(len(bed.cores))]
    workers: list[dict[str, Any]] = []
    for cores, link in zip(bed.cores, links, strict=True):
        worker: dict[str, Any] = {"fixed_s": core.fixed_s / cores, "per_sample_s": core.per_sample_s / cores}
        if link is not None:
            worker |= _rate(link)
            worker["loss"] = max(link.up_loss, link.down_loss)
        workers.append(worker)
    own_hosts = [f"server-{index}" for index, server in enumerate(bed.placed_servers) if server.host == OWN_HOST]
    limits = [_rate(bed.links[host]) for host in own_hosts if host in bed.links]
    narrowest = min(limits, key=lambda limit: limit.get("bytes_per_s", math.inf), default={})
    beside = len(own_hosts) < len(bed.placed_servers)
    servers: dict[str, Any] = {"count": len(own_hosts), "beside_workers": beside, **narrowest}
    return Scenario.model_validate(
        {
            "name": bed.name,
            "workers": tuple(workers),
            "servers": servers,
            "jitter": JITTER,
            "trace": tuple(_events(bed, lasting_s)),
        }
    )


def _rate(link: LinkSettings) -> dict[str, float]:
    """What a scenario of the simulator says of it: the narrower direction; nothing if neither is limited."""
    rates = [rate for rate in (link.up_mbit, link.down_mbit) if rate is not None]
    return {"bytes_per_s": min(rates) * _BYTES_PER_MBIT} if rates else {}


def _events(bed: BedScenario, lasting_s: float) -> Iterable[dict[str, Any]]:
    """One per span of time in which cores differ from those at the beginning."""
    period_s = bed.repeat_s or math.inf
    starts = [0.0, *(change.at_s for change in bed.schedule)]
    rounds = range(math.ceil(lasting_s / period_s)) if bed.repeat_s else range(1)
    begins_s = sorted({start + number * (bed.repeat_s or 0.0) for number in rounds for start in starts})
    ends_s = [*begins_s[1:], max(lasting_s, begins_s[-1] + 1.0)]
    for begin_s, end_s in zip(begins_s, ends_s, strict=True):
        factors = [first / now for first, now in zip(bed.cores, bed.at(begin_s).cores or bed.cores, strict=True)]
        if any(abs(factor - 1) > 1e-9 for factor in factors) and begin_s < lasting_s:
            yield {
                "at_s": begin_s, "until_s": end_s, "what": "compute",
                "workers": tuple(range(len(factors))), "value": tuple(factors),
            }  # fmt: skip
