"""A run folder as three workers and an arbitrator would leave it, for the tests of the reports."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamix_ps.config import Cluster, Config, Worker
from dynamix_ps.messages import WindowRecord
from dynamix_ps.report.run_folder import RunFolder

START_S = 1_700_000_000.0
WINDOW = 20


def config(workers: int = 3, **settings: Any) -> Config:
    return Config(cluster=Cluster(workers=tuple(Worker(batch=64) for _ in range(workers))), **settings)


def new_folder(base: Path) -> RunFolder:
    return RunFolder.create(base, "demo", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc), "ab12")


def append(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def started(rank: int, batch_size: int = 64, **fields: Any) -> dict[str, Any]:
    line = {"kind": "started", "rank": rank, "time_s": START_S, "comm": "byteps", "byteps_version": "0.2.5"}
    return line | {"torch_version": "2", "pid": 1, "batch_size": batch_size, "iteration": 0} | fields


def window(rank: int, number: int, batch_size: int = 64, **fields: Any) -> dict[str, Any]:
    """One window of 1 s: 0.5 s compute, 0.1 s push-pull, 0.3 s wait, 0.1 s input unless told otherwise."""
    record = WindowRecord(
        rank=rank,
        window=number,
        first_iteration=number * WINDOW,
        iterations=WINDOW,
        plan_version=number,
        batch_size=batch_size,
        samples=batch_size * WINDOW,
        duration_s=1.0,
        compute_s=0.5,
        push_pull_s=0.1,
        wait_s=0.3,
        input_s=0.1,
        loss=2.0 / (number + 1),
        accuracy=0.5,
        global_samples=3 * batch_size * WINDOW,
        global_loss=2.0 / (number + 1),
        global_accuracy=0.5,
        grad_sq_local=1.0,
        grad_sq_global=1.0,
        grad_norm_std=0.1,
        bytes_pushed=1000,
    )
    values = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(record).items()}
    return {"kind": "window", "time_s": START_S + number + 1.0, **values, **fields}


def plan(version: int, sizes: Iterable[int], **fields: Any) -> dict[str, Any]:
    line = {"kind": "plan", "time_s": START_S + version, "version": version, "batch_sizes": list(sizes)}
    return line | {"window": version - 1, "proposed": list(sizes), "reward": None, "decision_ms": 1.5} | fields


def plan_applied(rank: int, version: int, sizes: Iterable[int], **fields: Any) -> dict[str, Any]:
    line = {"kind": "plan_applied", "rank": rank, "time_s": START_S + version + 0.1 * (rank + 1), "version": version}
    return line | {"iteration": version * WINDOW + 3, "batch_sizes": list(sizes), "lr_factor": 1.0} | fields


def evaluation(after_s: float, accuracy: float, **fields: Any) -> dict[str, Any]:
    line = {"kind": "evaluation", "rank": 0, "time_s": START_S + after_s, "iteration": int(after_s * WINDOW)}
    return line | {"epoch": 0, "accuracy": accuracy, "loss": 1 - accuracy, "samples": 10000} | fields


def finished(rank: int, iterations: int, samples: int, train_s: float) -> dict[str, Any]:
    line = {"kind": "finished", "rank": rank, "time_s": START_S + train_s, "iterations": iterations}
    return line | {"samples": samples, "train_s": train_s}


def whole_run(folder: RunFolder, windows: int = 30, workers: int = 3) -> None:
    """A run in which the fast worker takes over samples from the slow ones, plan by plan."""
    speeds = [0.7, 0.4, 0.3, *([0.5] * workers)][:workers]
    append(
        folder.journal_file, {"kind": "started", "time_s": START_S, "policy": "ppo", "workers": workers, "restarts": 0}
    )
    sizes = [64] * workers
    total = 64 * workers
    moment = START_S
    for rank in range(workers):
        append(folder.worker_file(rank), started(rank))
    for number in range(windows):
        seconds = [0.012 * WINDOW * size / 64 / speed for size, speed in zip(sizes, speeds, strict=True)]
        longest = max(seconds) + 0.08
        moment += longest
        for rank, compute_s in enumerate(seconds):
            times = {"compute_s": compute_s, "wait_s": max(seconds) - compute_s, "push_pull_s": 0.06, "input_s": 0.02}
            line = window(rank, number, sizes[rank], duration_s=longest, time_s=moment, **times)
            append(folder.worker_file(rank), line)
        if number % 5 == 4:
            reached = 0.9 - 0.5 * math.exp(-number / 8)
            append(folder.worker_file(0), evaluation(moment - START_S, reached, iteration=(number + 1) * WINDOW))
        share = min((number + 1) / 12, 1.0)
        goal = [total * speed / sum(speeds) for speed in speeds]
        sizes = [round((1 - share) * 64 + share * size) for size in goal]
        append(folder.journal_file, plan(number + 1, sizes, time_s=moment, reward=0.1 * number))
        for rank in range(workers):
            line = plan_applied(rank, number + 1, sizes, time_s=moment + 0.05, iteration=(number + 1) * WINDOW + 2)
            append(folder.worker_file(rank), line)
    for rank in range(workers):
        samples = windows * WINDOW * 64
        append(folder.worker_file(rank), finished(rank, windows * WINDOW, samples, moment - START_S))
