"""Records, views and configurations for tests of the control plane."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynamix_ps.config.schema import BatchBounds, Cluster, Config, PolicySection, Ppo, Timeouts, WorkerSection
from dynamix_ps.messages import Plan, Registration, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.window_arrays import OF_LINK, OF_RECORD, WindowArrays


def record(rank: int = 0, window: int = 0, **changes: Any) -> WindowRecord:
    """A plausible record: 20 iterations of 64 samples in 2 seconds."""
    base = WindowRecord(
        rank=rank,
        window=window,
        first_iteration=20 * window,
        iterations=20,
        plan_version=0,
        batch_size=64,
        samples=1280,
        duration_s=2.0,
        compute_s=1.0,
        push_pull_s=0.5,
        wait_s=0.25,
        input_s=0.25,
        loss=1.5,
        accuracy=0.5,
        global_samples=3840,
        global_loss=1.4,
        global_accuracy=0.52,
        grad_sq_local=4.0,
        grad_sq_global=1.0,
        grad_norm_std=0.3,
        bytes_pushed=1_000_000,
        cpu_ratio=0.9,
        memory_bytes=2.0e8,
    )
    return dataclasses.replace(base, **changes)


def view(plan: Plan, records: list[WindowRecord | None], low: int = 32, high: int = 1024) -> View:
    """A closed window of these records, all workers with the same bounds."""
    window = max((r.window for r in records if r is not None), default=0)
    return View(window, plan, ((low, high),) * len(plan.batch_sizes), tuple(records))


def run_under(plan: Plan, window: int, **changes: Any) -> list[WindowRecord | None]:
    """One clean record per worker of a window that ran under `plan`."""
    return [
        record(rank, window, plan_version=plan.version, batch_size=size, samples=20 * size, **changes)
        for rank, size in enumerate(plan.batch_sizes)
    ]


def stacked(windows: Sequence[WindowArrays]) -> WindowArrays:
    """Windows of several live clusters as one of as many environments."""
    of_worker = {"present", "low", "high", "planned", "worker_duration_s", *OF_RECORD, *OF_LINK}

    def values(name: str) -> Any:
        return np.stack(
            [np.broadcast_to(getattr(one, name), one.planned.shape if name in of_worker else ()) for one in windows]
        )

    return WindowArrays(**{field.name: values(field.name) for field in dataclasses.fields(WindowArrays)})


def config(workers: int = 3, policy: str = "proportional", mode: str = "adapt", **ppo: Any) -> Config:
    return Config(
        mode=mode,  # type: ignore[arg-type]
        cluster=Cluster(workers=tuple(WorkerSection(batch=64) for _ in range(workers))),
        batch=BatchBounds(min=32, max=1024),
        policy=PolicySection(name=policy, ppo=Ppo(**ppo)),  # type: ignore[arg-type]
        timeouts=Timeouts(rpc_s=1.0, lease_s=3.0),
    )


def registration(rank: int = 0, incarnation: str | None = None, plan: Plan | None = None) -> Registration:
    return Registration(rank, incarnation or f"life-{rank}", "host", 1000 + rank, plan or Plan(0, (64, 64, 64)))
