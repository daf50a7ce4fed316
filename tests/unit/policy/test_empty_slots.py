"""Every policy decides for the workers that are there; slots of nobody have bounds of 0 and no records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.arbitrator.planner import guard
from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Elastic, Policy, Worker
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import View, ask
from dynamix_ps.policy.registry import make_policy
from tests.control_plane import record

CENTRAL = [name for name, entry in POLICIES.items() if entry.central]
KEEPING = ["static", "proportional", "lbbsp"]  # the global batch


def policy_of(name: str) -> tuple[Config, Any]:
    workers = (*(Worker(batch=64),) * 2, *(Worker(batch=64, later=True),) * 2)
    config = Config(
        cluster=Cluster(workers=workers),
        batch=BatchBounds(min=16, max=512),
        elastic=Elastic(min_workers=1),
        policy=Policy(name=name),
    )
    return config, make_policy(config, 4, np.random.default_rng(0))


def of_worker(rank: int, window: int, plan: Plan) -> WindowRecord:
    size, seconds_per_sample = plan.batch_sizes[rank], (1 + rank) * 2e-4
    compute_s = 20 * size * seconds_per_sample
    sizes = {"batch_size": size, "samples": 20 * size, "global_samples": 20 * plan.global_batch}
    return record(rank, window, plan_version=plan.version, compute_s=compute_s, **sizes)


@pytest.mark.parametrize("name", CENTRAL)
def test_workers_come_into_slots_of_nobody(name: str, tmp_path: Path) -> None:
    config, policy = policy_of(name)
    plan, window = Plan(0, config.initial_sizes()), 0
    for there in (2, 3, 4):
        sizes = tuple(size or (32 if rank < there else 0) for rank, size in enumerate(plan.batch_sizes))
        plan = Plan(plan.version + 1, sizes)
        bounds = tuple((16, 512) if rank < there else (0, 0) for rank in range(4))
        for _ in range(6):
            records = [of_worker(rank, window, plan) if rank < there else None for rank in range(4)]
            view = View(window, plan, bounds, tuple(records), reference_batch=128)
            found = guard(ask(policy, view).batch_sizes, plan.batch_sizes, bounds)
            assert all(found.batch_sizes[:there]) and not any(found.batch_sizes[there:])
            if name in KEEPING:
                assert sum(found.batch_sizes) == plan.global_batch and not found.corrected
            plan = Plan(plan.version + 1, found.batch_sizes)
            window += 1
