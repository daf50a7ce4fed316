"""How soon a new plan is out when hundreds of workers report by gRPC, and what the arbitrator takes up meanwhile.

    python -m benchmarks.parts.reporters --json FILE

The arbitrator is a process of its own, as in a run, with a journal on disk. Other processes stand for the workers: each
worker has a connection, a stream of plans, heartbeats and reports of its window and of its network. In every window all
report at once but one, which waits until the other reports have arrived. Times are from its report on:

    decided  the plan is at the first worker: policy, journal and disk are done
    half     it is at half of the workers
    all      it is at the last worker

`decided_p99_ms` is at most LIMIT_MS. Reporters and arbitrator share the cores of this machine, so `half` and `all`
count the time in which the reporters take the plan in too; so do `reports_s`, from the first report of a window to the
last but one. Memory and open files are those of the arbitrator: after the registration of all, after half of the
windows, at the end, and when all have left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.made_up_cluster import cluster, load
from benchmarks.parts.processes.reporter_process import Part, Window, run
from benchmarks.testbed.ports import free_port
from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan
from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.run_record.run_folder import RunFolder

WORKERS = (256, 512, 1024)
LIMIT_MS = 50.0
PROCESSES = 4
WARM_UP = 5  # windows that do not count
_PAUSE_S = 0.05  # before the last report, so that earlier work is done
_START_S = 180.0
_LEAVE_S = 1.0  # until closed connections are gone
_TIMES = ("decided", "half", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of workers")
    parser.add_argument("--windows", type=int, default=100, help="windows that count")
    parser.add_argument("--policy", default="ppo", help="as in a cluster file")
    args = parser.parse_args()
    rows = [measure(number, args.windows, args.policy) for number in args.workers]
    table = Table(title=f"ms from the last report to a plan of {args.policy}, p50 / p99")
    for column in ("workers", "plans", *_TIMES, "reports s", "MB", "open files", "idle CPU"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (f"{row[f'{name}_p50_ms']:.1f} / {row[f'{name}_p99_ms']:.1f}" for name in _TIMES)
        taken = [" ".join(f"{value:.0f}" for value in row[name]) for name in ("memory_mb", "open_files")]
        table.add_row(
            str(row["workers"]), str(row["plans"]), *times, f"{row['reports_s']:.2f}", *taken, f"{row['idle_cpu']:.0%}"
        )
    Console().print(table)
    print(f"decided: p99 at most {LIMIT_MS:g} ms")
    if args.json:
        figures = {"policy": args.policy, "limit_ms": LIMIT_MS, "cores": os.cpu_count(), "rows": rows}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(workers: int, windows: int, policy: str) -> dict[str, Any]:
    """The figures for so many workers."""
    config = cluster(policy, workers)
    plan, times, reports_s = Plan(0, config.initial_sizes()), [], []
    with arbitrator(config) as (access, process), reporters(access, plan, workers) as pipes:
        taken = [footprint(process)]
        idle_cpu = idle_share(process)
        made = load(workers)
        next(made)
        for window in range(WARM_UP + windows):
            print(f"{workers} workers, window {window + 1} of {WARM_UP + windows}\r", end="", file=sys.stderr)
            took_s, times_s, plan = one_window(pipes, made.send(plan), plan)
            if window >= WARM_UP and times_s:
                times.append(times_s)
                reports_s.append(took_s)
            if window == WARM_UP + windows // 2:
                taken.append(footprint(process))
        taken.append(footprint(process))
        for pipe in pipes:
            pipe.send(None)
        for pipe in pipes:
            pipe.recv()
        time.sleep(_LEAVE_S)
        taken.append(footprint(process))
    if not times:
        sys.exit(f"error: no window has got a new plan of {policy}")
    row: dict[str, Any] = {"workers": workers, "plans": len(times), "reports_s": float(np.median(reports_s))}
    for name, series in zip(_TIMES, zip(*times, strict=True), strict=True):
        row |= {f"{name}_p{share}_ms": 1000 * float(np.percentile(series, share)) for share in (50, 99)}
    memory_mb, open_files = zip(*taken, strict=True)
    return {**row, "memory_mb": memory_mb, "open_files": open_files, "idle_cpu": idle_cpu}


def one_window(pipes: list[Connection], made: Any, plan: Plan) -> tuple[float, tuple[float, ...], Plan]:
    """(seconds for all reports but the last, seconds until the plan is at the first, at half of them and at all, the
    plan); no times where no new plan comes."""
    roles, records = made
    pairs = list(zip(records, roles, strict=False))  # the report of the server comes last, and is left out
    shares = [tuple(pairs[place :: len(pipes)]) for place in range(len(pipes))]
    began_s = time.monotonic()
    for place, (pipe, share) in enumerate(zip(pipes, shares, strict=True)):
        pipe.send(Window(share[1:], share[0]) if place == 0 else Window(share, None))
    for pipe in pipes:
        pipe.recv()
    took_s = time.monotonic() - began_s
    time.sleep(_PAUSE_S)
    for pipe in pipes:
        pipe.send("go on")
    told = [pipe.recv() for pipe in pipes]
    sent_s = next(sent_s for sent_s, _ in told if sent_s is not None)
    new = {came.version: came for _, (came, _) in told if came is not None}
    came_s = sorted(moment_s - sent_s for _, (_, moments) in told for moment_s in moments)
    if len(came_s) < len(records):
        return took_s, (), max(new.values(), default=plan, key=lambda each: each.version)
    return took_s, (came_s[0], came_s[len(came_s) // 2], came_s[-1]), new[max(new)]


@contextmanager
def arbitrator(config: Config) -> Iterator[tuple[ArbitratorAccess, psutil.Process]]:
    """An arbitrator of its own run folder."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:  # /tmp may be in memory
        folder = RunFolder(Path(place, "run"))
        folder.make()
        folder.config_file.write_text(dump_config(config))
        access = ArbitratorAccess(f"127.0.0.1:{free_port()}", "run-1", "secret", config.timeouts)
        environ = {
            variables.CONFIG: str(folder.config_file),
            variables.RUN_DIR: str(folder.path),
            variables.RUN_ID: access.run_id,
            variables.TOKEN: access.token,
            variables.ARBITRATOR: access.address,
            "DMLC_NUM_SERVER": "1",
        }
        argv = (sys.executable, "-m", "dynamix_ps.arbitrator")
        with subprocess.Popen(argv, env={**os.environ, **ONE_THREAD, **environ}, stderr=subprocess.DEVNULL) as process:
            try:
                yield access, psutil.Process(process.pid)
            finally:
                process.terminate()


@contextmanager
def reporters(access: ArbitratorAccess, plan: Plan, workers: int) -> Iterator[list[Connection]]:
    """The processes that stand for the workers, which have all registered."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    try:
        for place in range(PROCESSES):
            ours, theirs = context.Pipe()
            part = Part(access, tuple(range(place, workers, PROCESSES)), plan)
            processes.append(context.Process(target=run, args=(part, theirs), daemon=True))
            processes[-1].start()
            theirs.close()  # so that reading fails if the process ends
            pipes.append(ours)
        for pipe in pipes:
            if not pipe.poll(_START_S) or pipe.recv() != "ready":
                sys.exit("error: the workers could not register")
        yield pipes
    finally:
        for process in processes:
            process.terminate()
            process.join()


def footprint(process: psutil.Process) -> tuple[float, int]:
    """(resident MB, open files)"""
    return process.memory_info().rss / 1e6, process.num_fds()


def idle_share(process: psutil.Process, duration_s: float = 6.0) -> float:
    """The part of a core that it takes while nobody reports: heartbeats alone."""
    process.cpu_percent()
    time.sleep(duration_s)
    return float(process.cpu_percent()) / 100


if __name__ == "__main__":
    main()
