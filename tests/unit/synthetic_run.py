"""Writes a run folder like that of three workers and an arbitrator, for the tests of the reports."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamix_ps.config.schema import Cluster, Config, Host, WorkerSection
from dynamix_ps.messages import WindowRecord
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.run_folder import RunFolder

START_S = 1_700_000_000.0
WINDOW = 20


def config(workers: int = 3, **settings: Any) -> Config:
    return Config(cluster=Cluster(workers=tuple(WorkerSection(batch=64) for _ in range(workers))), **settings)


def config_on_hosts(*names: str) -> Config:
    """A worker on each of these hosts, in the order of their ranks."""
    hosts = {name: Host(slots=names.count(name)) for name in names}
    workers = tuple(WorkerSection(batch=64, host=name) for name in names)
    return Config(cluster=Cluster(hosts=hosts, workers=workers))


def new_folder(base: Path) -> RunFolder:
    return RunFolder.create(base, "demo", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc), "ab12")


def append(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def started(rank: int, batch_size: int = 64, **fields: Any) -> dict[str, Any]:
    line = {"kind": "started", "rank": rank, "time_s": START_S, "comm": "byteps", "comm_version": "0.2.5"}
    return line | {"framework": "2", "pid": 1, "batch_size": batch_size, "iteration": 0} | fields


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
        bytes_pushed=25_000_000,
        summed_bytes_per_s=25e6,
    )
    values = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(record).items()}
    return {"kind": "window", "time_s": START_S + number + 1.0, **values, **fields}


def measured(rank: int, number: int, source: str = "ebpf") -> dict[str, Any]:
    """Network, machine and gradient values of a window line: worker 1's link loses segments, worker 2 has a quota."""
    wave = math.sin(number / 4 + rank)
    return {
        "network_source": source,
        "network_age_s": 0.1 + 0.05 * rank,
        "push_bytes_per_s": (12e6 + 2e6 * wave) / (rank + 1),
        "pull_bytes_per_s": (11e6 + 2e6 * wave) / (rank + 1),
        "retransmits_per_s": max(0.0, 30 + 10 * wave) if rank == 1 else 0.0,
        "rtt_s": 0.0002 + 0.002 * (rank == 1) + 0.0001 * abs(wave),
        "push_busy": 0.4,
        "cpu_ratio": 0.9 / (rank + 1),
        "cpu_cores": 2.0 / (rank + 1),
        "throttled": 0.3 + 0.1 * wave if rank == 2 else 0.0,
        "memory_bytes": 4e8 + 1e6 * number + 1e7 * rank,
        "memory_ratio": 0.1,
        "noise_variance": 800.0 + 100 * wave if rank == 0 else 800.0,
        "noise_signal": 4.0 / (1 + number / 10),
        "grad_norm_std": 0.1 + 0.02 * wave,
        "lr_factor": 2 ** (wave / 4),
        "lr_guard": 1.0,
        "gc_s": 0.01,
        "epoch": number / 10,
    }


def link(rank: int, **fields: Any) -> dict[str, Any]:
    values = {"rank": rank, "push_bytes_per_s": 12e6, "pull_bytes_per_s": 11e6, "push_retransmits_per_s": 0.0}
    values |= {"pull_retransmits_per_s": 2.0, "push_rtt_s": 0.0002, "pull_rtt_s": None, "push_busy": 0.4}
    values |= {"pull_busy": 0.3, "push_difference": 0.01, "source": "ebpf", "age_s": 0.4, "slow": ""}
    return values | fields


def server(name: str = "server-0", **fields: Any) -> dict[str, Any]:
    machine = {"cpu_ratio": 0.7, "cpu_cores": 2.0, "throttled": None, "memory_bytes": 1.5e8, "memory_ratio": 0.02}
    values = {"name": name, "push_bytes_per_s": 36e6, "pull_bytes_per_s": 33e6, "unread_bytes": 2e5}
    values |= {"unsent_bytes": 1e5, "system": machine, "source": "ebpf", "age_s": 0.3}
    return values | fields


def links(window: int, of: Iterable[dict[str, Any]], servers: Iterable[dict[str, Any]] = (), **fields: Any) -> Line:
    line = {"kind": "links", "time_s": START_S + window + 1.1, "window": window}
    return line | {"links": list(of), "servers": list(servers)} | fields


def flow(local: str, remote: str, **fields: Any) -> dict[str, Any]:
    return {"local": local, "remote": remote, "bytes_out": 0.0, "bytes_in": 0.0, "retransmits": 0.0} | fields


def role(name: str, flows: Iterable[dict[str, Any]] = (), **fields: Any) -> Line:
    kind, _, rank = name.partition("-")
    line = {"kind": "role", "time_s": START_S + 1.0, "name": name, "role": kind}
    line |= {"rank": int(rank) if kind == "worker" else -1, "host": "h", "pid": 1, "network_source": "ebpf"}
    system = {"cpu_ratio": 0.5, "cpu_cores": 2.0, "memory_bytes": 1e8}
    return line | {"network_age_s": 0.2, "flows": list(flows), "system": system} | fields


def plan(version: int, sizes: Iterable[int], **fields: Any) -> dict[str, Any]:
    line = {"kind": "plan", "time_s": START_S + version, "version": version, "batch_sizes": list(sizes)}
    return line | {"window": version - 1, "proposed": list(sizes), "reward": None, "decision_ms": 1.5} | fields


def plan_applied(rank: int, version: int, sizes: Iterable[int], **fields: Any) -> dict[str, Any]:
    line = {"kind": "plan_applied", "rank": rank, "time_s": START_S + version + 0.1 * (rank + 1), "version": version}
    return line | {"iteration": version * WINDOW + 3, "batch_sizes": list(sizes), "lr_factor": 1.0} | fields


def evaluation(after_s: float, accuracy: float, **fields: Any) -> dict[str, Any]:
    line = {"kind": "evaluation", "rank": 0, "time_s": START_S + after_s, "iteration": int(after_s * WINDOW)}
    values = {"values": {"accuracy": accuracy, "loss": 1 - accuracy}}
    return (
        line | values | {"higher_is_better": {"accuracy": True, "loss": False}, "epoch": 0, "samples": 10000} | fields
    )


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
            line |= measured(rank, number) | {"global_samples": total * WINDOW}
            append(folder.worker_file(rank), line)
        joined = [link(rank, slow="link" if rank == 1 else "") for rank in range(workers)]
        servers = [server(), server("scheduler", system={"cpu_ratio": 0.02, "cpu_cores": 2.0})]
        append(folder.journal_file, links(number, joined, servers, time_s=moment + 0.01))
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


def long_run(folder: RunFolder, windows: int, workers: int = 4) -> None:
    """A run that goes on, whose workers have written so many windows together, of 1 s each, and a plan in each 100."""
    append(folder.journal_file, {"kind": "started", "time_s": START_S, "policy": "ppo", "workers": workers})
    for rank in range(workers):
        lines = [json.dumps(started(rank))]
        for number in range(windows // workers):
            version = number // 100
            line = window(rank, number, 64 + version % 7, plan_version=version, time_s=START_S + 1 + number)
            lines.append(json.dumps(line | measured(rank, number) | {"trained_ratio": number * workers / windows / 2}))
            if number % 100 == 99:
                lines.append(json.dumps(plan_applied(rank, version + 1, [64] * workers, time_s=START_S + 1.5 + number)))
        folder.worker_file(rank).write_text("\n".join(lines) + "\n")
