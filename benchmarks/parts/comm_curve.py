"""Time of a sum by its size: our BytePS beside gloo, beside the floor of shared memory, beside the limits of networks.

    python -m benchmarks.parts.comm_curve --json FILE             one host
    python -m benchmarks.parts.comm_curve --hosts --json FILE     hosts in network namespaces (as root)
    python -m benchmarks.parts.comm_curve --models --json FILE    iterations of two large models, one host

Our BytePS and gloo alternate in blocks within the same processes, so that noise of the machine affects both.
`ratio_to_gloo` is the median over pairs of neighbouring blocks of our time divided by gloo's (below 1: we are faster).
The time of a block is that of its slowest worker. `cpu_s` has the CPU seconds of all roles per operation.
Where a cell of a table has two figures, the first one is ours and the second one gloo's.

One host: `floor_ms` is the time of the same sum in shared memory by a small C program (memory_floor.c) in the same
processes, in blocks between the others. It reads and writes each buffer once.

Hosts: each worker's host has a server too; a case such as 200x3+3 has 3 extra hosts with servers, and links of
200 Mbit/s, and 200x2x2 has two workers on each of two hosts. `limit_ms` and `gloo_limit_ms` are the shortest times that
these links allow (comm_limits.py).
`overruns` counts packets that were lost because this machine was too slow for the rates; unless it is 0, the network
was worse than it should be.

Models: VGG11 for CIFAR-10 (37 MB) and an MLP (537 MB), two workers. Ours is the exchange of the hook, gloo is torch's
DistributedDataParallel, and `alone_ms` is an iteration of workers that exchange nothing. `different_weights` counts
weights whose bits differ after the same steps over both.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.parts.processes.roles import Roles
from benchmarks.parts.references import memory_floor
from benchmarks.parts.references.comm_limits import CASES, MODEL_BARS, ONE_HOST_BARS, Case, judge, summary
from benchmarks.report.page import KIB, MIB, size_text
from benchmarks.suite.machine_speed import machine_name
from benchmarks.testbed import Bed, Link, permitted
from benchmarks.testbed.byteps_roles import OURS, Place, on_bed, on_loopback

ONE_HOST_SIZES = (64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
HOSTS_SIZES = (1 * MIB, 4 * MIB, 16 * MIB)
WORKERS = (2, 4)
MODELS = ("vgg11", "mlp")

Row = dict[str, Any]
Column = Callable[[Row], str]


class Curve:
    """Runs clusters and collects their rows; shows progress."""

    def __init__(self, folder: Path, blocks: int, block_s: float, console: Console) -> None:
        self._folder, self._blocks, self._block_s, self._console = folder, blocks, block_s, console
        self._runs = 0

    def one_host(self, workers: int, sizes: Sequence[int], floor: Path) -> Iterator[Row]:
        for row in self._run(f"{workers} workers", [*_sizes(sizes), "--floor", str(floor)], workers):
            yield {"workers": workers, **row, "bars": judge(row, ONE_HOST_BARS)}

    def hosts(self, case: Case, sizes: Sequence[int]) -> Iterator[Row]:
        """Raises BedError if the test bed does not work."""
        with Bed({host: Link(up_bits_per_s=rate, down_bits_per_s=rate) for host, rate in case.rates.items()}) as bed:
            overruns = 0
            place = on_bed(bed, case.host)
            for row in self._run(case.name, _sizes(sizes), case.workers, len(case.rates), place):
                before, overruns = overruns, bed.overruns()
                limits = {
                    "limit_ms": case.limit_ms(row["size_bytes"]),
                    "gloo_limit_ms": case.ring_limit_ms(row["size_bytes"]),
                    "overruns": overruns - before,
                }
                yield {"case": case.name, **limits, **row, "bars": judge(row, {"ratio_to_gloo": case.ratio_bar})}

    def models(self, models: Sequence[str]) -> Iterator[Row]:
        for row in self._run("2 workers", ["--models", *models], workers=2):
            yield {**row, "bars": judge(row, MODEL_BARS)}

    def _run(
        self,
        title: str,
        arguments: Sequence[str],
        workers: int,
        servers: int = 1,
        place: Callable[[str], Place] = on_loopback,
    ) -> Iterator[Row]:
        self._runs += 1
        self._console.print(f"{title}: starts", highlight=False)
        worker = ["-m", "benchmarks.parts.processes.comm_curve_worker", *arguments]
        worker += ["--rendezvous", str(self._folder / f"rendezvous-{self._runs}")]
        worker += ["--blocks", str(self._blocks), "--block-s", str(self._block_s)]
        with Roles(self._folder, OURS, worker, workers=workers, servers=servers, place=place) as running:
            for measured in running.rows():
                row = {**measured, **summary(measured["blocks"])}
                what = row.get("model") or size_text(row["size_bytes"])
                self._console.print(f"{title}, {what}: {row['ratio_to_gloo']:.2f} of gloo", highlight=False)
                yield row


def _sizes(sizes: Sequence[int]) -> list[str]:
    return ["--sizes", *map(str, sizes)]


def parse_size(text: str) -> int:
    """Bytes of a size such as 64K or 16M. Raises argparse.ArgumentTypeError."""
    unit = {"K": KIB, "M": MIB}.get(text[-1:].upper())
    if unit is None or not text[:-1].isdecimal() or int(text[:-1]) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a size such as 64K or 16M")
    return int(text[:-1]) * unit


def table(part: str, rows: Sequence[Row]) -> Table:
    result = Table(title=f"{TITLES[part]}, {machine_name()}", box=None, pad_edge=False)
    for number, column in enumerate(COLUMNS[part]):
        result.add_column(column, justify="right" if number else "left")
    for row in rows:
        result.add_row(*(text(row) for text in COLUMNS[part].values()))
    return result


def _number(value: float) -> str:
    """Three digits, but no more than three decimals."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def _ms(name: str) -> Column:
    return lambda row: _number(row[name])


def _cpu_ms(row: Row) -> str:
    return f"{_number(row['cpu_s']['ours'] * 1e3)}/{_number(row['cpu_s']['gloo'] * 1e3)}"


def _bar(name: str, decimals: int = 2) -> Column:
    def text(row: Row) -> str:
        bar = row["bars"][name]
        return f"[{'green' if bar['met'] else 'red'}]{bar['figure']:.{decimals}f}[/]"

    return text


def _verdict(row: Row) -> str:
    return "[green]met[/]" if all(bar["met"] for bar in row["bars"].values()) else "[red]missed[/]"


SIZE: dict[str, Column] = {"size": lambda row: size_text(row["size_bytes"])}
TIMES: dict[str, Column] = {"ours\nms": _ms("ours_ms"), "gloo\nms": _ms("gloo_ms")}
CPU: dict[str, Column] = {"CPU\nms": _cpu_ms}
COLUMNS: dict[str, dict[str, Column]] = {
    "one_host": {
        "workers": lambda row: str(row["workers"]),
        **SIZE,
        **TIMES,
        "floor\nms": _ms("floor_ms"),
        **CPU,
        f"of gloo\n<= {ONE_HOST_BARS['ratio_to_gloo']}": _bar("ratio_to_gloo"),
        f"of floor\n<= {ONE_HOST_BARS['ratio_to_floor']:g}": _bar("ratio_to_floor"),
        "bars": _verdict,
    },
    "hosts": {
        "case": lambda row: row["case"],
        **SIZE,
        **TIMES,
        "limits\nms": lambda row: f"{_number(row['limit_ms'])}/{_number(row['gloo_limit_ms'])}",
        **CPU,
        "of gloo": _bar("ratio_to_gloo"),
        "<=": lambda row: f"{row['bars']['ratio_to_gloo']['at_most']:.2f}",
        "bars": _verdict,
    },
    "models": {
        "model": lambda row: row["model"],
        "size": lambda row: f"{row['size_bytes'] / 1e6:.0f} MB",
        **TIMES,
        "alone\nms": _ms("alone_ms"),
        **CPU,
        f"of gloo\n<= {MODEL_BARS['ratio_to_gloo']}": _bar("ratio_to_gloo"),
        "different\nweights": _bar("different_weights", decimals=0),
        "bars": _verdict,
    },
}
TITLES = {
    "one_host": "sums on one host",
    "hosts": "sums between hosts (rate in Mbit/s x workers + extra servers)",
    "models": "iterations, two workers",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--hosts", action="store_true", help="measure between hosts")
    parser.add_argument("--models", nargs="*", choices=MODELS, help="measure iterations of models")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, metavar="N", help="on one host")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="SIZE", help="such as 64K 16M")
    cases = {case.name: case for case in CASES}
    parser.add_argument(
        "--cases", nargs="+", choices=cases, metavar="CASE", default=list(cases), help=f"of --hosts: {' '.join(cases)}"
    )
    parser.add_argument("--quick", action="store_true", help="a first impression: two short blocks of each system")
    args = parser.parse_args()
    if args.hosts and (refusal := permitted()):
        raise SystemExit(f"--hosts is not possible here: {refusal}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that roles and hosts are removed
    console = Console()
    parts: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="dx-curve-") as name:
        folder = Path(name)
        blocks, block_s = (2, 0.1) if args.quick else (6, 0.5)
        curve = Curve(folder, blocks, block_s, console)
        if args.hosts:
            sizes = args.sizes or HOSTS_SIZES
            parts["hosts"] = [row for case in args.cases for row in curve.hosts(cases[case], sizes)]
        if args.models is not None:
            parts["models"] = list(curve.models(args.models or MODELS))
        if not parts:
            floor, sizes = memory_floor.build(folder), args.sizes or ONE_HOST_SIZES
            parts["one_host"] = [row for workers in args.workers for row in curve.one_host(workers, sizes, floor)]
    for part, rows in parts.items():
        console.print(table(part, rows))
    if lost := sum(row["overruns"] for row in parts.get("hosts", [])):
        console.print(f"{lost} packets were lost because this machine is too slow for the rates", highlight=False)
    bars = [bar["met"] for rows in parts.values() for row in rows for bar in row["bars"].values()]
    console.print(f"{sum(bars)} of {len(bars)} bars met", highlight=False)
    if args.json:
        figures = {**parts, "blocks": blocks, "block_s": block_s, "machine": machine_name()}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
