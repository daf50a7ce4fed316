"""The data plane: iteration time with the BytePS that we build, with torch DDP over gloo, with BytePS as shipped.

    python -m benchmarks.parts.comm --json FILE

Two workers on this machine train a small MLP (17,418 numbers) and the demo's CNN (215,370 numbers), with one torch
thread each and equal batches. All systems run in the same benchmark and alternate. Our BytePS and gloo alternate in
blocks of iterations within the same two processes, so that noise of the machine affects both. BytePS as shipped keeps
every core busy even when idle, so it runs in separate processes between these blocks. It has its default settings, plus
what is necessary to build it and to run two workers on one host.

`ratio_to_gloo` is the median over pairs of neighbouring blocks of our time divided by gloo's (below 1: we are
faster). `idle_cpu_*` is the share of one core that a connected, idle scheduler or server takes. `max_abs_diff`
compares the weights after 200 steps with ours and with gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.parts.processes.comm_worker import BATCH, BLOCK
from benchmarks.parts.processes.roles import WORKERS, Roles, cpu_s
from benchmarks.testbed.byteps_roles import OURS
from dynamix_ps.byteps_build.build import build_byteps
from dynamix_ps.byteps_build.progress import Progress
from dynamix_ps.byteps_build.recipe import MARKER, Recipe
from dynamix_ps.byteps_build.toolchain import check
from dynamix_ps.config import variables

IDLE_S = 5.0
WORKER = ("-m", "benchmarks.parts.processes.comm_worker")


def measure(folder: Path, stock_folder: Path, rounds: int, blocks: int, console: Console) -> dict[str, Any]:
    """All figures of the benchmark."""
    pairs: list[Any] = []
    stock: list[Any] = []
    for index in range(rounds):
        console.print(f"round {index + 1} of {rounds}", highlight=False)
        options = ["--blocks", str(blocks), "--rendezvous", str(folder / f"rendezvous-{index}")]
        with Roles(folder, OURS, [*WORKER, "pair", *options, *(["--check"] if index == 0 else [])]) as running:
            pairs.append(running.results()[0])
        shipped = {"PYTHONPATH": f"{stock_folder}{os.pathsep}{Path.cwd()}", "BYTEPS_LOG_LEVEL": "ERROR"}
        with Roles(folder, shipped, [*WORKER, "stock"]) as running:
            stock.append(running.results()[0])
    console.print(f"idle for {IDLE_S:.0f} s", highlight=False)
    with Roles(folder, OURS, [*WORKER, "idle"]) as running:
        scheduler_cpu, server_cpu = idle_cpu(running)
    figures: dict[str, Any] = {
        "ratio_to_gloo": {},
        "ratio_spread": {},
        "ours_ms": {},
        "gloo_ms": {},
        "stock_ms": {model: statistics.median(result[model] for result in stock) for model in BLOCK},
        "idle_cpu_scheduler": scheduler_cpu,
        "idle_cpu_server": server_cpu,
        "max_abs_diff": max(pairs[0]["max_abs_diff"].values()),
    }
    for model in BLOCK:
        ours = [value for pair in pairs for value in pair["blocks"][model]["ours"]]
        gloo = [value for pair in pairs for value in pair["blocks"][model]["gloo"]]
        ratios = sorted(a / b for a, b in zip(ours, gloo, strict=True))
        figures["ratio_to_gloo"][model] = statistics.median(ratios)
        figures["ratio_spread"][model] = [ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]]
        figures["ours_ms"][model] = statistics.median(ours)
        figures["gloo_ms"][model] = statistics.median(gloo)
    figures |= {"workers": WORKERS, "batch": BATCH, "rounds": rounds, "blocks": blocks, "cores": os.cpu_count()}
    return figures


def idle_cpu(running: Roles) -> tuple[float, float]:
    """Share of one core that the connected, idle scheduler and server take."""
    workers = [process for name, process in running.processes.items() if name.startswith("worker")]
    for process in workers:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("ready"):
            if not line:
                raise SystemExit("a worker of the idle cluster ended before it was ready")
    watched = [psutil.Process(running.processes[role].pid) for role in ("scheduler", "server-0")]
    before, began_s = [cpu_s(process) for process in watched], time.monotonic()
    time.sleep(IDLE_S)
    passed_s = time.monotonic() - began_s
    scheduler, server = ((cpu_s(p) - b) / passed_s for p, b in zip(watched, before, strict=True))
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    running.results()
    return scheduler, server


def stock_install(console: Console) -> Path:
    """BytePS as shipped, in a separate folder; builds it if it is missing."""
    recipe = Recipe("stock", check())
    folder = Path(variables.cache_dir()) / "byteps" / f"installed-{recipe.key}"
    if not (folder / "byteps" / MARKER).is_file():
        console.print("building BytePS as shipped, for comparison", highlight=False)
        build_byteps(recipe, Progress(console), target=folder)
    return folder


def table(figures: dict[str, Any]) -> Table:
    result = Table(title=f"iteration time, {WORKERS} workers on {figures['cores']} cores, batch {BATCH} each")
    for column in ("model", "ours ms", "gloo ms", "as shipped ms", "ours / gloo", "10 %..90 % of pairs"):
        result.add_column(column, justify="left" if column == "model" else "right")
    for model in BLOCK:
        low, high = figures["ratio_spread"][model]
        result.add_row(
            model,
            f"{figures['ours_ms'][model]:.3f}",
            f"{figures['gloo_ms'][model]:.3f}",
            f"{figures['stock_ms'][model]:.1f}",
            f"{figures['ratio_to_gloo'][model]:.2f}",
            f"{low:.2f}..{high:.2f}",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=6, help="blocks of each system per round and model")
    args = parser.parse_args()
    console = Console()
    stock_folder = stock_install(console)
    with tempfile.TemporaryDirectory(prefix="dx-comm-") as folder:
        figures = measure(Path(folder), stock_folder, args.rounds, args.blocks, console)
    console.print(table(figures))
    console.print(
        f"idle: scheduler {figures['idle_cpu_scheduler']:.2%} and server {figures['idle_cpu_server']:.2%} of a core; "
        f"weights after 200 steps differ from gloo's by at most {figures['max_abs_diff']:.1e}",
        highlight=False,
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
