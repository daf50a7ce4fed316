"""Ring and parameter server side by side: time per iteration with equal and with adaptive sizes, on real processes.

    python -m benchmarks.studies.bed.ring_or_server --json FILE [--quick] [--limit-s SECONDS]

Four workers train the same CNN on the same 256 samples per iteration, over a ring (gloo) and over parameter servers
(BytePS): one on every worker's host, and 0 to 3 on further hosts. Hosts are network namespaces with links of 100
Mbit/s; in half of the clusters one worker's link has 40. Speeds are equal, or up to 4 times apart. Sizes are equal, or
those of the policy that ships with its global batch held, so that only shares adapt. ring_or_server_cell.py has all of
this.

Beside each measured time stands what the links alone take for the gradient: on a ring every host sends and receives
2 (n-1)/n of it, and the slowest link decides; a parameter server puts its shares where links are fast
(dynamix_ps/comm/byteps/placement.py).

40 runs of half a minute each, on a machine that does nothing else; needs root. Every run is kept in ring-or-server/ as
soon as it ends, and the same command goes on from there. Delete the folder to measure anew. `--quick` runs ring and
servers on one cluster for a few seconds, to show that it works, and keeps them in ring-or-server-quick/.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.page import draw, markdown, update_page
from benchmarks.studies.bed.cells import machines, run_on_bed
from benchmarks.studies.bed.clock_answers import Span
from benchmarks.studies.bed.ring_or_server_cell import (
    ADAPTIVE,
    CLUSTERS,
    EQUAL,
    PLANES,
    RING,
    SIZE,
    SIZES,
    WORKERS,
    cluster_of,
    command_of,
    training_of,
)
from benchmarks.studies.study import resumable_arguments
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.results import CellName, CellResult
from benchmarks.workloads.models import count_parameters, make_model
from dynamix_ps.comm.byteps.placement import link_traffic, server_shares
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console

SEED = 1
FASHION, CLASSES = (1, 28, 28), 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is run. `stem`: of the folder and the page."""

    stem: str
    clusters: tuple[str, ...]
    planes: tuple[str, ...]
    span: Span

    def cells(self) -> tuple[CellName, ...]:
        """Both sizes one after the other, so that a machine that changes its speed changes both."""
        return tuple(
            CellName(cluster, plane, sizes, SEED)
            for cluster in self.clusters
            for plane in self.planes
            for sizes in SIZES
        )

    def clock_of(self, result: CellResult) -> float | None:
        """Seconds per sample within the span; None if the training ended before."""
        return self.span.seconds_per_sample([(one.time_s, one.samples) for one in result.curve])


FULL = Comparison("ring-or-server", CLUSTERS, PLANES, Span(8.0, 18.0))
QUICK = Comparison("ring-or-server-quick", CLUSTERS[-1:], PLANES[:2], Span(2.0, 8.0))


@dataclass(frozen=True, slots=True)
class Pair:
    """A plane on a cluster, with equal and with adaptive sizes.

    Attributes:
        equal_s, adaptive_s: seconds of an iteration.
        links_s: what the links alone take for the gradient.
        exchange, waiting: parts of the time, means over workers, with equal and with adaptive sizes.
        sizes: the adaptive ones at the end, by rank.
    """

    cluster: str
    plane: str
    equal_s: float
    adaptive_s: float
    links_s: float
    exchange: tuple[float, float]
    waiting: tuple[float, float]
    sizes: tuple[int, ...]

    @property
    def ratio(self) -> float:
        return self.adaptive_s / self.equal_s


def main(arguments: list[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: list[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="too small for meaningful figures; shows that it works")
    args = parser.parse_args(arguments)
    chosen, console = QUICK if args.quick else FULL, make_console()
    until_s = chosen.span.until_s
    results, interrupted = run_on_bed(
        chosen.cells(),
        GridFolder(args.out / chosen.stem),
        training_of(chosen.cells()[0], until_s),
        lambda cell, out: command_of(cell, out, until_s),
        chosen.clock_of,
        time.monotonic() + args.limit_s,
    )
    found = list(pairs(chosen, results))
    if found:
        console.print(f"page: {write_page(args.out, chosen, results, found)}", highlight=False)
    if args.json:
        shown = {"runs": len(results), "of": len(chosen.cells()), "pairs": [figures_of(one) for one in found]}
        args.json.write_text(json.dumps(shown, indent=2) + "\n")
    if left := len(chosen.cells()) - len(results):
        console.print(f"{left} runs are left; the same command goes on", highlight=False)
    return INTERRUPTED_EXIT_CODE if interrupted else 0


def pairs(chosen: Comparison, results: Mapping[CellName, CellResult]) -> Iterator[Pair]:
    """Those whose two runs have ended."""
    for name in chosen.cells():
        other = dataclasses.replace(name, contender=ADAPTIVE)
        if name.contender == EQUAL and name in results and other in results:
            equal, adaptive = results[name], results[other]
            of_equal, of_adaptive = (chosen.clock_of(one) for one in (equal, adaptive))
            assert of_equal is not None and of_adaptive is not None, "results that tell no clock are not kept"
            yield Pair(
                name.scenario,
                name.workload,
                WORKERS * SIZE * of_equal,
                WORKERS * SIZE * of_adaptive,
                links_s(name),
                (_part(equal, "push_pull"), _part(adaptive, "push_pull")),
                (_part(equal, "wait"), _part(adaptive, "wait")),
                adaptive.sizes[-1].sizes,
            )


def _part(result: CellResult, name: str) -> float:
    return float(np.mean([getattr(worker, name) for worker in result.workers]))


def links_s(name: CellName) -> float:
    """Seconds that the busiest link needs for one gradient, if nothing else is in its way."""
    cluster = cluster_of(name)
    bytes_per_s = {host: link.up_mbit * 1e6 / 8 for host, link in cluster.links.items() if link.up_mbit is not None}
    workers = [f"worker-{rank}" for rank in range(WORKERS)]
    gradient_bytes = 4 * count_parameters(make_model("cnn", FASHION, CLASSES))
    if name.workload == RING:
        return 2 * (WORKERS - 1) / WORKERS * gradient_bytes / min(bytes_per_s[host] for host in workers)
    hosts = [server.host if server.host in workers else f"server-{number}"
             for number, server in enumerate(cluster.placed_servers)]  # fmt: skip
    shares = dict(zip(hosts, server_shares(workers, hosts, bytes_per_s), strict=True))
    traffic = {
        host: float(link_traffic(float(host in workers), np.array(share), float(WORKERS)))
        for host, share in shares.items()
    }
    return max(gradient_bytes * traffic[host] / bytes_per_s[host] for host in traffic)


def write_page(folder: Path, chosen: Comparison, results: Mapping[CellName, CellResult], found: list[Pair]) -> Path:
    """Renew the figures and the picture. Raises UsageError if the page cannot be written."""
    page = folder / f"{chosen.stem}.md"
    told = (
        f"`python -m benchmarks.studies.bed.ring_or_server{' --quick' * (chosen is QUICK)}`: {len(results)} of "
        f"{len(chosen.cells())} runs on {machines(results)}. Iterations of {WORKERS * SIZE} samples, from "
        f"{chosen.span.from_s:g} to {chosen.span.until_s:g} s of training."
    )
    draw(page.with_suffix(".png"), lambda figure: draw_pairs(figure, found))
    picture = f"![Time per iteration by plane]({chosen.stem}.png)"
    update_page(page, f"{told}\n\n{markdown([_row(one) for one in found])}\n\n{picture}\n")
    return page


def _row(one: Pair) -> dict[str, str]:
    return {
        "cluster": f"`{one.cluster}`",
        "plane": f"`{one.plane}`",
        "ms of an iteration, equal sizes": f"{1e3 * one.equal_s:.0f}",
        "adaptive sizes": f"{1e3 * one.adaptive_s:.0f}",
        "adaptive / equal": f"**{one.ratio:.2f}**",
        "ms of links alone": f"{1e3 * one.links_s:.0f}",
        "push and pull, equal -> adaptive": " -> ".join(f"{100 * part:.0f} %" for part in one.exchange),
        "waiting for others": " -> ".join(f"{100 * part:.0f} %" for part in one.waiting),
        "sizes at the end": ", ".join(map(str, one.sizes)),
    }


def figures_of(one: Pair) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(one) | {"ratio": one.ratio}


def draw_pairs(figure: Any, found: list[Pair]) -> None:
    """A panel for every cluster, two bars for every plane, a mark for what the links alone take."""
    clusters = list(dict.fromkeys(one.cluster for one in found))
    figure.set_size_inches(3 * len(clusters) + 1.5, 3.6)
    for axes, cluster in zip(figure.subplots(1, len(clusters), sharey=True, squeeze=False)[0], clusters, strict=True):
        here = [one for one in found if one.cluster == cluster]
        places = np.arange(len(here))
        axes.bar(places - 0.2, [1e3 * one.equal_s for one in here], 0.4, label="equal sizes")
        axes.bar(places + 0.2, [1e3 * one.adaptive_s for one in here], 0.4, label="adaptive sizes")
        axes.plot(places, [1e3 * one.links_s for one in here], "k_", markersize=18, label="links alone")
        axes.set_xticks(places, [one.plane for one in here], rotation=45)
        axes.set_title(cluster, fontsize="medium")
    figure.axes[0].set_ylabel("ms of an iteration")
    figure.axes[-1].legend(fontsize="small")


if __name__ == "__main__":
    sys.exit(main())
