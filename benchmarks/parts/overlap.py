"""How much of the sums computing hides: iterations between hosts, beside the longer of their two parts.

    python -m benchmarks.parts.overlap --json FILE      as root: hosts are network namespaces

Workers on hosts of their own, each with a server, over slow links. In blocks that alternate within the same processes:
`alone`, an iteration that exchanges nothing; `sum`, the sum of the gradient at once while nothing computes; `ours`, the
exchange of the hook; `next`, the same with `overlap: next_forward`; `large`, in buckets as on a fast link; `bf16` and
`int8`, with `cluster.wire`; `gloo`, torch's DistributedDataParallel. The time of a block is that of its slowest worker.
A case is MODEL:BATCH, or waiting-MODEL:RATIO: its layers wait instead of computing, and its sum takes RATIO times as
long.

`exposed` is `ours` over the larger of `alone` and `sum`: 1 means that the shorter part is hidden behind the longer one.
`next_exposed` is the same of `next`.
`over_large` is what small buckets gain, `bf16_over_ours` and `int8_over_ours` what fewer bytes gain. Ratios are medians
over neighbouring blocks. All hosts share the cores of this machine, so sums slow computing down, which they do less on
machines of their own.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.parts.processes.roles import Roles
from benchmarks.suite.machine_speed import machine_name
from benchmarks.testbed import Bed, Link, permitted
from benchmarks.testbed.byteps_roles import OURS, on_bed

CASES = ("vgg11:8", "vgg11:32", "cnn:64")
SYSTEMS = ("alone", "sum", "ours", "next", "large", "bf16", "int8", "gloo")
RATIOS = {  # one system over another one, or over the longer of `alone` and `sum`
    "exposed": ("ours", ""),
    "next_exposed": ("next", ""),
    "over_large": ("ours", "large"),
    "bf16_over_ours": ("bf16", "ours"),
    "int8_over_ours": ("int8", "ours"),
    "over_gloo": ("ours", "gloo"),
    "next_over_gloo": ("next", "gloo"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="CASE")
    parser.add_argument("--mbit-per-s", type=float, default=200.0, help="rate of each link, in both directions")
    parser.add_argument("--workers", type=int, default=2, help="each on a host of its own")
    parser.add_argument("--blocks", type=int, default=6, help="of each system")
    parser.add_argument("--block-s", type=float, default=4.0, help="seconds of a block")
    args = parser.parse_args()
    if refusal := permitted():
        raise SystemExit(f"this measurement is not possible here: {refusal}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that roles and hosts are removed
    console = Console()
    rows = []
    link = Link(up_bits_per_s=1e6 * args.mbit_per_s, down_bits_per_s=1e6 * args.mbit_per_s)
    with (
        tempfile.TemporaryDirectory(prefix="dx-overlap-") as folder,
        Bed({f"host-{number}": link for number in range(args.workers)}) as bed,
    ):
        worker = ["-m", "benchmarks.parts.processes.overlap_worker", "--rendezvous", f"{folder}/rendezvous"]
        worker += ["--cases", *args.cases, "--blocks", str(args.blocks), "--block-s", str(args.block_s)]
        place = on_bed(bed, lambda role: f"host-{int(role.partition('-')[2] or 0)}")
        with Roles(Path(folder), OURS, worker, workers=args.workers, servers=args.workers, place=place) as running:
            for measured in running.rows():
                rows.append({**measured, **summary(measured["blocks"])})
                console.print(f"{measured['case']} is measured", highlight=False)
                if args.json:
                    figures = {"rows": rows, "overruns": bed.overruns(), "machine": machine_name()}
                    args.json.write_text(json.dumps(figures, indent=2) + "\n")
        overruns = bed.overruns()
    console.print(table(rows))
    if overruns:
        console.print(f"{overruns} packets were lost because this machine is too slow for the rates", highlight=False)


def summary(blocks: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians over blocks, which are (ms, CPU seconds) per operation, and over the ratios of neighbouring blocks."""
    ms = {system: [block[0] for block in measured] for system, measured in blocks.items()}
    ms[""] = [max(pair) for pair in zip(ms["alone"], ms["sum"], strict=True)]

    def ratio(one: list[float], other: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(one, other, strict=True))

    return {
        **{f"{system}_ms": statistics.median(times) for system, times in ms.items() if system},
        "cpu_s": {system: statistics.median(block[1] for block in measured) for system, measured in blocks.items()},
        **{name: ratio(ms[one], ms[other]) for name, (one, other) in RATIOS.items() if {one, other} <= ms.keys()},
    }


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table(title=f"iterations on hosts with slow links, {machine_name()}", box=None, pad_edge=False)
    result.add_column("case")
    titles = (name.replace("_over", "\nover").replace("over_", "over\n") for name in RATIOS)
    for column in (*(f"{system}\nms" for system in SYSTEMS), *titles):
        result.add_column(column, justify="right")
    for row in rows:
        result.add_row(
            row["case"],
            *(f"{row[f'{system}_ms']:.0f}" if f"{system}_ms" in row else "" for system in SYSTEMS),
            *(f"{row[ratio]:.2f}" if ratio in row else "" for ratio in RATIOS),
        )
    return result


if __name__ == "__main__":
    main()
