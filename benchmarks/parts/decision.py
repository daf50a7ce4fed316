"""How long a decision takes, from the last report of a window to the new plan.

    python -m benchmarks.parts.decision --json FILE

A real arbitrator runs in this process, without the network. It gets window records and reports of connections, and the
benchmark watches one worker's stream of plans. The cluster is synthetic: each worker has one connection to one server,
and speeds change by up to a third from window to window, so that nearly every window gets a new plan. A window without
a new plan counts for `decide` but not for `path`.

    decide   the policy alone, with its safety net
    CPU      the CPU time of its thread, which other processes on the machine hardly change
    path     last report in -> window closed -> policy -> guard -> journal -> plan at the watching worker
    disk     the same, but the journal is synced to disk (fsync) before the plan is published, as in a real run

Another figure compares `ppo` with `goodput` for 32 workers. Both decide alternately, window by window, each on its own
cluster. The figure is the CPU time of the thread. `--json` writes it as `ppo_p50_ms`, `ppo_p99_ms`, `goodput_p50_ms`
and `ratio_to_goodput`, the ratio of the medians, at most RATIO_LIMIT. The limits of the p99 are for `decide` on an idle
core; `missed` lists the rows whose wall time, and those whose CPU time, is above them. `path` and `disk` have no limit:
training goes on with the present plan meanwhile.

`ppo` and `ppo paper` decide with the weights that ship. `ppo learning` also learns, with an update every four windows.
Windows follow each other at once here, not after seconds, so that nearly all of them overlap with an update.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.made_up_cluster import cluster, load
from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.messages import (
    LinkView,
    Plan,
    Registration,
    ServerView,
    SystemSample,
)
from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.run_record.json_lines import Journal

POLICIES = ("proportional", "pid", "goodput", "ppo", "ppo learning", "ppo paper")
RATIO_LIMIT = 1.8  # of the median decision of `ppo` to that of `goodput`
COMPARED_WORKERS = 32
LIMITS_MS = {32: 2.0, 1024: 20.0}  # p99 of `decide` by the number of workers
PARTS = ("decide", "cpu", "path", "disk")
WARM_UP = 5  # windows that do not count
PAUSE_S = 0.01  # before the last report, so that earlier work is done
WINDOWS = {32: 600, 1024: 200}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--part", type=float, default=1.0, help="part of the windows, for a quick look (default 1)")
    args = parser.parse_args()
    compared = compare(COMPARED_WORKERS, max(20, int(args.part * WINDOWS[COMPARED_WORKERS])))
    rows = []
    for workers, limit_ms in LIMITS_MS.items():
        for name in POLICIES:
            print(f"{workers} workers, {name}", file=sys.stderr, flush=True)
            row = measure(name, workers, max(20, int(args.part * WINDOWS[workers])))
            rows.append(row | {"limit_ms": limit_ms})
    table = Table(title="decision time in ms, p50 / p99")
    for column in ("workers", "policy", "plans", "decide", "CPU", "path", "disk", "limit of p99, decide"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for row in rows:
        times = (f"{row[f'{part}_p50_ms']:.2f} / {row[f'{part}_p99_ms']:.2f}" for part in PARTS)
        table.add_row(str(row["workers"]), row["policy"], str(row["plans"]), *times, f"{row['limit_ms']:g}")
    Console().print(table)
    print(
        f"decide, CPU time in turn: ppo {compared['ppo_p50_ms']:.2f} ms, goodput {compared['goodput_p50_ms']:.2f} ms, "
        f"ratio {compared['ratio_to_goodput']:.2f} (limit {RATIO_LIMIT:g})"
    )
    missed = {part: late(rows, part) for part in ("decide", "cpu")}
    print(f"above their limit: by wall time {missed['decide'] or 'none'}, by CPU time {missed['cpu'] or 'none'}")
    if args.json:
        figures = {**compared, "ratio_limit": RATIO_LIMIT, "rows": rows, "limits_ms": LIMITS_MS, "missed": missed}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(name: str, workers: int, windows: int) -> dict[str, Any]:
    """The figures of one policy and cluster size."""
    policy, path = asyncio.run(follow(name, workers, windows, Undurable))
    _, disk = asyncio.run(follow(name, workers, windows, Journal))
    row: dict[str, Any] = {"workers": workers, "policy": name, "plans": len(path)}
    for part, times in zip(PARTS, (policy.took_ms[WARM_UP:], policy.cpu_ms[WARM_UP:], path, disk), strict=True):
        row |= {f"{part}_p{share}_ms": float(np.percentile(times, share)) for share in (50, 99)}
    return row


def late(rows: Sequence[dict[str, Any]], part: str) -> list[str]:
    """The rows whose p99 of that part is above the limit."""
    return [f"{row['policy']} at {row['workers']}" for row in rows if row[f"{part}_p99_ms"] > row["limit_ms"]]


def compare(workers: int, windows: int) -> dict[str, float]:
    """CPU time of alternating decisions of ppo and goodput, and the ratio of the medians."""
    turns = {name: decisions(name, workers) for name in ("ppo", "goodput")}
    gc.collect()
    gc.freeze()
    taken_ms = [(next(turns["ppo"]), next(turns["goodput"])) for _ in range(WARM_UP + windows)][WARM_UP:]
    gc.unfreeze()
    ppo, goodput = np.median(taken_ms, axis=0).tolist()
    return {
        "ppo_p50_ms": ppo,
        "ppo_p99_ms": float(np.percentile(taken_ms, 99, axis=0)[0]),
        "goodput_p50_ms": goodput,
        "ratio_to_goodput": ppo / goodput,
    }


def decisions(name: str, workers: int) -> Iterator[float]:
    """CPU milliseconds of every decision, without an arbitrator; each window runs under the plan of the one before."""
    config = cluster(name, workers)
    policy = Timed(make_policy(config, workers, np.random.default_rng(0)))
    bounds = tuple(config.bounds(rank) for rank in range(workers))
    links = tuple(LinkView(rank, 1e6, 1e6, 0.0, 0.0, 1e-3, 1e-3, 0.1, 0.1, 0.0) for rank in range(workers))
    servers = (ServerView("server-0", system=SystemSample(0.9, 2.0)),)
    plan, made = Plan(0, config.initial_sizes()), load(workers)
    next(made)
    for window in itertools.count():
        _, records = made.send(plan)
        view = View(window, plan, bounds, tuple(records), links, servers, reference_batch=sum(config.initial_sizes()))
        sizes = policy.decide(view).batch_sizes
        plan = plan if sizes == plan.batch_sizes else Plan(plan.version + 1, sizes)
        yield policy.cpu_ms[-1]


class Undurable(Journal):
    """A journal that writes as usual but never waits for the disk."""

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        super().write(kind, sync=False, **fields)


class Timed:
    """A policy that records the wall time of its decisions, and the CPU time of their thread."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.took_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, view: View) -> Decision:
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        decision: Decision = self._policy.decide(view)
        self.cpu_ms.append(1000 * (time.thread_time() - cpu_s))
        self.took_ms.append(1000 * (time.perf_counter() - began_s))
        return decision


async def follow(
    name: str, workers: int, windows: int, journal_type: Callable[[Path], Journal]
) -> tuple[Timed, list[float]]:
    """The policy, timed, and milliseconds from the last report to the plan of windows that got a new one."""
    config = cluster(name, workers)
    policy = Timed(make_policy(config, workers, np.random.default_rng(0)))
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp may be in memory
        file = Path(folder) / "journal.jsonl"
        journal = journal_type(file)
        arbitrator = Arbitrator(config, policy, journal, replay(file), Path(folder) / "policy.npz")
        plan = Plan(0, config.initial_sizes())
        for rank in range(workers):
            arbitrator.register(Registration(rank, "life", "host", rank, plan))
        published: list[tuple[float, Plan]] = []
        watching = asyncio.create_task(watch(arbitrator.plans(0, "life", 0), published))
        made = load(workers)
        next(made)
        gc.collect()
        gc.freeze()  # as the arbitrator does when it starts
        path_ms: list[float] = []
        for window in range(WARM_UP + windows):
            reports, records = made.send(plan)
            for report in reports:
                arbitrator.observe(report)
            for record in records[:-1]:
                arbitrator.report("life", record)
            await asyncio.sleep(PAUSE_S)
            began_s = time.perf_counter()
            arbitrator.report("life", records[-1])
            await arbitrator.step()
            if published and published[-1][1] != plan:
                moment_s, plan = published[-1]
                if window >= WARM_UP:
                    path_ms.append(1000 * (moment_s - began_s))
        gc.unfreeze()
        watching.cancel()
        journal.close()
    return policy, path_ms


async def watch(plans: AsyncIterator[Plan], published: list[tuple[float, Plan]]) -> None:
    """Record when a worker would get each plan."""
    async for plan in plans:
        published.append((time.perf_counter(), plan))


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():  # as in the arbitrator; numpy is already loaded here
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.parts.decision", *sys.argv[1:]],
            {**os.environ, **ONE_THREAD},
        )
    sys.exit(main())
