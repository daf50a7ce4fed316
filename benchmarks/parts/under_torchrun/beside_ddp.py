"""A job that torchrun starts, with the hook and with torch's DistributedDataParallel: its start and its iterations.

    python -m benchmarks.parts.under_torchrun.beside_ddp --json FILE

Two workers with one thread each train the demo's CNN with 128 samples each over gloo (processes/ddp_worker.py); the
hook's policy is `static`. After a run of each way that does not count, both take turns, and each pair begins with the
other way. Each way has the malloc that it comes with: the hook keeps freed memory, plain torch does not, unless the
environment sets up malloc. `start_s` is from the command to the end of the first iteration, `iteration_s` the mean of
those after the first WARM_UP; both are those of the slower worker. A ratio is the median over the pairs of the hook's
time over DDP's, and may be as large as in MOST.

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.parts.under_torchrun.job import run_two
from benchmarks.report.page import where
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.config import variables

WAYS = ("dynamix", "ddp")
MOST = {"start_s": 1.15, "iteration_s": 1.0}
WARM_UP = 60  # arbitrator and companion start beside the first ones
_ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 300

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and rows")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each way (default: %(default)s)")
    args = parser.parse_args()
    rows: dict[str, list[Row]] = {way: [] for way in WAYS}
    with exclusive_machine(lambda: print("another grid runs; waiting for its end", flush=True)):
        for way in WAYS:
            measured(way)  # Python keeps what it compiles
        for pair in range(args.pairs):
            for way in WAYS if pair % 2 == 0 else WAYS[::-1]:
                rows[way].append(measured(way))
                told = ", ".join(f"{name} {value:.4f}" for name, value in rows[way][-1].items())
                print(f"pair {pair + 1} of {args.pairs}, {way}: {told}", flush=True)
    figures = {name: ratios(rows, name) for name in MOST}
    if args.json:
        document = {"machine": where(), "figures": figures, "rows": rows}
        args.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    Console().print(table(figures))
    sys.exit(any(figures[name]["ratio"] > most for name, most in MOST.items()))


def measured(way: str) -> Row:
    """One run. Ends this program if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = (sys.executable, "-m", "torch.distributed.run")
        script = ("-m", "benchmarks.parts.processes.ddp_worker", way, folder)
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        began_s = time.time()
        run_two(
            torchrun, script, Path(folder), {**environ, "PYTHONPATH": str(_ROOT), variables.PLOTS: "no"}, _TIMEOUT_S
        )
        ends = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return {
        "start_s": max(of_worker[0] for of_worker in ends) - began_s,
        "iteration_s": max((one[-1] - one[WARM_UP]) / (len(one) - 1 - WARM_UP) for one in ends),
    }


def ratios(rows: dict[str, list[Row]], name: str) -> Row:
    """Medians of both ways, and the ratio with its smallest and largest pair."""
    pairs = [ours[name] / theirs[name] for ours, theirs in zip(*(rows[way] for way in WAYS), strict=True)]
    medians = {way: statistics.median(row[name] for row in rows[way]) for way in WAYS}
    return {**medians, "ratio": statistics.median(pairs), "least": min(pairs), "most": max(pairs)}


def table(figures: dict[str, Row]) -> Table:
    result = Table(title=f"beside DDP, {where()}", box=None, pad_edge=False)
    for column in ("", *WAYS, "ratio", "pairs", "at most"):
        result.add_column(column, justify="right" if column else "left")
    for name, row in figures.items():
        seconds = (f"{row[way]:.4f}" for way in WAYS)
        pairs = f"{row['least']:.2f}..{row['most']:.2f}"
        result.add_row(name, *seconds, f"{row['ratio']:.3f}", pairs, str(MOST[name]))
    return result


if __name__ == "__main__":
    main()
