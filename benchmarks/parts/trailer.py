"""What the trailer costs by the number of workers: the values behind the gradients, of which each worker has a slot.

    python -m benchmarks.parts.trailer --json FILE

CPU time of one worker's training thread per iteration, in the code that a training runs (worker_hooks), without sums:

    write    the worker's own trailer
    read     the summed one
    judge    whether all do the same with the same weights, who waits, and how noisy gradients are
    sizes    with `policy: {name: stigmergy}`, the worker's part in the next sizes: all of a decision, over the
             iterations of a window. A central policy needs none of this
    adding   for comparison, a server's: the trailers of all workers added to one, by one core. It is spread over all
             servers, and the workers of a host push one together

`bytes` go from a worker to the servers and come back, in float32, with the numbers that stigmergy needs. The bar is for
the sum of the first four: LIMIT of an iteration of ITERATION_S. Medians over windows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.made_up_cluster import WINDOW, record
from dynamix_ps.messages import Plan
from dynamix_ps.metrics.noise import estimate
from worker_hooks.backward import NORM_EVERY
from worker_hooks.exchange import trailer
from worker_hooks.exchange.agreement import weights_differ
from worker_hooks.observe.change import ChangeWatch
from worker_hooks.planning.own_size import TOLD, OwnSize

WORKERS = (4, 32, 128, 512, 1024)
PARAMETERS = 62  # tensors, as ResNet-18 has
BOUNDS = (32, 1024)
ITERATION_S, LIMIT = 0.1, 0.02
PARTS = ("write", "read", "judge", "sizes", "adding")
OF_WORKER = PARTS[:-1]

Values = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--windows", type=int, default=15, help="windows of each number of workers (default 15)")
    args = parser.parse_args()
    rows = [measure(workers, args.windows) for workers in WORKERS]
    table = Table(title="CPU time per iteration in ms")
    for column in ("workers", "bytes", *OF_WORKER, "together", f"of {ITERATION_S * 1000:g} ms", "adding"):
        table.add_column(column, justify="right")
    for row in rows:
        own = (f"{row[f'{part}_ms']:.3f}" for part in OF_WORKER)
        together = f"{row['together_ms']:.3f}", f"{row['share']:.2%}"
        table.add_row(f"{row['workers']:,}", f"{row['bytes']:,}", *own, *together, f"{row['adding_ms']:.3f}")
    Console().print(table)
    print(f"bar: {LIMIT:.0%} with {WORKERS[-1]:,} workers, {'met' if rows[-1]['share'] <= LIMIT else 'missed'}")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "limit": LIMIT}, indent=2) + "\n")


def measure(workers: int, windows: int) -> dict[str, Any]:
    """The figures of one number of workers."""
    job = Job(workers)
    taken = [job.window() for _ in range(windows + 1)][1:]  # the first one does not count
    row: dict[str, Any] = {"workers": workers, "bytes": 4 * len(job.summed)}
    row |= {f"{part}_ms": 1000 * float(np.median([one[part] for one in taken])) for part in PARTS}
    together_ms = sum(row[f"{part}_ms"] for part in OF_WORKER)
    return row | {"together_ms": together_ms, "share": together_ms / (1000 * ITERATION_S)}


class Job:
    """Worker 0 of so many, which all do the same."""

    def __init__(self, workers: int) -> None:
        self._workers, self._plan = workers, Plan(0, (64,) * workers)
        self._speeds = np.random.default_rng(1).uniform(500, 2000, workers)
        self._present = np.ones(PARAMETERS, dtype=np.bool_)
        self._told_at = trailer.length(workers, PARAMETERS)
        bounds = (BOUNDS,) * workers
        self._own, self._others = (
            OwnSize(here, bounds, False, "sqrt", 64 * workers, seed=0, ring=False)
            for here in (range(1), range(1, workers))
        )
        self._change, self._number = ChangeWatch(), 0
        self.summed: Values = np.zeros(self._told_at + TOLD * workers, dtype=np.float32)

    def window(self) -> dict[str, float]:
        """CPU seconds of each part, per iteration of one window."""
        taken = dict.fromkeys(PARTS, 0.0)
        self._end_window(taken)
        for iteration in range(WINDOW):
            own: Values = np.zeros_like(self.summed)
            begin_s = time.thread_time()
            trailer.encode([self._contribution(0)], 0, self._workers, self._present, own[: self._told_at], leads=True)
            own[self._told_at :] = self._own.telling.ravel()
            taken["write"] += time.thread_time() - begin_s
            self._sum()
            view = _timed(taken, "read", lambda: trailer.decode(self.summed[: self._told_at], self._workers))
            _timed(taken, "judge", partial(self._judge, view, iteration))
            self._decide(taken, view.present)
        _timed(taken, "adding", lambda: [np.add(self.summed, own, out=own) for _ in range(self._workers)])
        return {part: seconds / (1 if part == "adding" else WINDOW) for part, seconds in taken.items()}

    def _contribution(self, rank: int) -> trailer.Contribution:
        waited_s = 0.01 * (rank % 7)
        return trailer.Contribution(
            64, 0.5 / self._workers, 32.0, 3.0, 0, waited_s, 12345, (0.5, 1.25), judged=64, global_sq=2.0, lasted_s=0.1
        )

    def _sum(self) -> None:
        """What all workers have written, together."""
        mine = [self._contribution(rank) for rank in range(self._workers)]
        whole = np.zeros(self._told_at)
        trailer.encode(mine, 0, self._workers, self._present, whole, leads=True)
        self.summed[: self._told_at] = whole
        self.summed[self._told_at :] = (self._own.telling + self._others.telling).ravel()

    def _judge(self, view: trailer.GlobalView, iteration: int) -> None:
        if view.doing.count(view.doing[0]) != len(view.doing) or weights_differ(view.weights, 1e-6):
            raise AssertionError("the workers do the same with the same weights")
        self._change.see(view.waited_s, view.lasted_s)
        if iteration % NORM_EVERY == 0:
            estimate(view.worker_samples, view.grad_sq, view.global_sq)

    def _end_window(self, taken: dict[str, float]) -> None:
        """All workers have a new record."""
        compute_s = WINDOW * np.array(self._plan.batch_sizes) / self._speeds
        duration_s = float(compute_s.max()) + 0.1
        records = [
            record(rank, self._number, self._plan, float(compute_s[rank]), duration_s) for rank in range(self._workers)
        ]
        self._others.window_over(records[1:], self._plan)
        _timed(taken, "sizes", lambda: self._own.window_over(records[:1], self._plan))
        self._number += 1

    def _decide(self, taken: dict[str, float], present: Sequence[int]) -> None:
        """All workers read what they tell each other; worker 0 is timed."""
        received = self.summed[self._told_at :].reshape(TOLD, -1)
        self._others.summed(received.astype(np.float64), present)
        chosen = _timed(taken, "sizes", lambda: self._own.summed(received.astype(np.float64), present))
        if chosen is not None:
            self._plan = Plan(self._plan.version + 1, chosen)


def _timed(taken: dict[str, float], part: str, work: Callable[[], Any]) -> Any:
    begin_s = time.thread_time()
    result = work()
    taken[part] += time.thread_time() - begin_s
    return result


if __name__ == "__main__":
    main()
