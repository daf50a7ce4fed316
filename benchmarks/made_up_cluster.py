"""A made-up cluster for benchmarks of the control plane: its configuration, and what its roles report.

Every worker has one connection to one server. Speeds change by up to a third from window to window, so that nearly
every window gets a new plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Literal

import numpy as np

from dynamix_ps.config.schema import Cluster, Config, PolicySection, Ppo, WorkerSection
from dynamix_ps.messages import Flow, Plan, RoleReport, SystemSample, WindowRecord

WINDOW = 20  # iterations


def cluster(name: str, workers: int) -> Config:
    kind, _, variant = name.partition(" ")
    space: Literal["paper", "structured"] = "paper" if variant == "paper" else "structured"
    ppo = Ppo(space=space, learn=variant == "learning", windows_per_update=4)
    return Config(
        cluster=Cluster(workers=tuple(WorkerSection(batch=64) for _ in range(workers))),
        policy=PolicySection(name=kind, ppo=ppo),
    )


def load(workers: int) -> Generator[tuple[list[RoleReport], list[WindowRecord]], Plan, None]:
    """Send it the plan, and get what all roles report of the next window."""
    rng = np.random.default_rng(1)
    speeds = rng.uniform(500, 2000, workers)
    ends = [(f"10.0.{rank // 256}.{rank % 256}:4000", "10.9.9.9:9000") for rank in range(workers)]
    time_s = 1.0
    plan = yield [], []
    for window in itertools.count():
        compute_s = WINDOW * np.array(plan.batch_sizes) / (speeds * rng.uniform(0.67, 1.33, workers))
        duration_s = float(compute_s.max()) + 0.1
        time_s += duration_s
        records = [record(rank, window, plan, float(compute_s[rank]), duration_s) for rank in range(workers)]
        plan = yield list(role_reports(ends, time_s)), records


def role_reports(ends: list[tuple[str, str]], time_s: float) -> Iterator[RoleReport]:
    """Of one connection per worker, from both sides."""
    machine = SystemSample(0.9, 2.0, 0.0, 1e9, 0.5)
    sent, theirs = 1e6 * time_s, []
    for rank, (local, remote) in enumerate(ends):
        flow = Flow(local, remote, sent, sent, 0.0, busy_s=0.1 * time_s, rtt_s=1e-3)
        theirs.append(Flow(remote, local, sent, sent, 0.0, busy_s=0.1 * time_s, rtt_s=1e-3))
        yield RoleReport(f"worker-{rank}", "worker", rank, "host", rank, time_s, "ebpf", 0.0, (flow,), machine)
    yield RoleReport("server-0", "server", -1, "host", 1, time_s, "ebpf", 0.0, tuple(theirs), machine)


def record(rank: int, window: int, plan: Plan, compute_s: float, duration_s: float) -> WindowRecord:
    size, progress = plan.batch_sizes[rank], 1 - 0.99**window
    return WindowRecord(
        rank=rank,
        window=window,
        first_iteration=WINDOW * window,
        iterations=WINDOW,
        plan_version=plan.version,
        batch_size=size,
        samples=WINDOW * size,
        duration_s=duration_s,
        compute_s=compute_s,
        push_pull_s=0.1,
        wait_s=max(0.0, duration_s - compute_s - 0.1),  # rounding
        input_s=0.0,
        loss=2.3 - 2 * progress,
        accuracy=0.1 + 0.8 * progress,
        global_samples=WINDOW * plan.global_batch,
        global_loss=2.3 - 2 * progress,
        global_accuracy=0.1 + 0.8 * progress,
        grad_sq_local=2.0,
        grad_sq_global=1.0,
        grad_norm_std=0.1,
        bytes_pushed=10_000_000,
        noise_variance=30.0 * plan.global_batch,
        noise_signal=1.0,
        cpu_ratio=0.9,
        cpu_cores=2.0,
        memory_bytes=1e9,
        memory_ratio=0.5,
    )
