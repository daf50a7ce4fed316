"""Every policy decides for the workers that are there; places of nobody have bounds of 0 and no records.

Workers come into places that were empty from the beginning, and others are lost and come back.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.arbitrator.planner import guard
from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Elastic, PolicySection, WorkerSection
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import View, ask
from dynamix_ps.policy.registry import make_policy
from tests.control_plane import record

CENTRAL = [name for name, entry in POLICIES.items() if entry.central]
KEEPING = ["static", "proportional", "lbbsp"]  # the global batch


def policy_of(name: str) -> tuple[Config, Any]:
    workers = (*(WorkerSection(batch=64),) * 2, *(WorkerSection(batch=64, later=True),) * 2)
    config = Config(
        cluster=Cluster(workers=workers),
        batch=BatchBounds(min=16, max=512),
        elastic=Elastic(min_workers=1),
        policy=PolicySection(name=name),
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


ALL = [{"name": name} for name in CENTRAL] + [
    {"name": "ppo", "ppo": {"space": "paper"}},
    {"name": "ppo", "ppo": {"learn": True}},
    {"name": "ppo", "safety": {"enabled": False}},
    {"name": "lbbsp", "lbbsp": {"rule": "gpu"}},
    {"name": "pid", "pid": {"keep_global": True}},
]
KEEPING_ALL = [*({"name": name} for name in (*KEEPING, "lbb")), *ALL[-2:]]
SECONDS = (4e-4, 3e-4, 4e-4, 1e-4)  # per sample, by rank
FAST = 3


def named(policy: dict[str, Any]) -> str:
    return " ".join(str(value) for value in policy.values())


class Job:
    """Four workers, of which the last one is fast, and a policy. Plans are those of the arbitrator."""

    def __init__(self, policy: dict[str, Any], keep: str = "global", places: int = 4) -> None:
        self.config = Config.model_validate(
            {
                "cluster": {"workers": ({"batch": 64},) * places},
                "batch": {"min": 16, "max": 512},
                "elastic": {"min_workers": 1, "keep": keep},
                "policy": policy,
            }
        )
        self.policy = make_policy(self.config, places, np.random.default_rng(0))
        self.plan = Plan(0, self.config.initial_sizes())
        self.places = WorkerPlaces(self.config, self.plan)
        self.window = 0

    def change(self, wanted: Plan) -> None:
        self.plan = Plan(self.plan.version + 1, wanted.batch_sizes)

    def lose(self, rank: int) -> None:
        self.places.empty.add(rank)
        self.change(self.places.without_empty(self.plan))

    def run(self, windows: int) -> list[int]:
        """So many windows. Returns the global batches of the plans."""
        found = []
        for _ in range(windows):
            bounds = self.places.within(((16, 512),) * len(self.plan.batch_sizes))
            there = [rank for rank, (_, high) in enumerate(bounds) if high]
            records = [self._record(rank) if rank in there else None for rank in range(len(bounds))]
            view = View(self.window, self.plan, bounds, tuple(records), reference_batch=256)
            answer = guard(ask(self.policy, view).batch_sizes, self.plan.batch_sizes, bounds)
            assert [rank for rank, size in enumerate(answer.batch_sizes) if size] == there
            self.change(Plan(0, answer.batch_sizes))
            self.window += 1
            found.append(self.plan.global_batch)
        return found

    def _record(self, rank: int) -> WindowRecord:
        sizes = self.plan.batch_sizes
        compute_s = [20 * size * SECONDS[other] for other, size in enumerate(sizes)]
        told = {"batch_size": sizes[rank], "samples": 20 * sizes[rank], "global_samples": 20 * sum(sizes)}
        times = {"compute_s": compute_s[rank], "duration_s": max(compute_s) + 0.2}
        return record(rank, self.window, plan_version=self.plan.version, **told, **times)


@pytest.mark.parametrize("policy", ALL, ids=named)
@pytest.mark.parametrize("keep", ["global", "local"])
def test_no_policy_has_a_part_for_a_lost_worker_until_it_is_back(policy: dict[str, Any], keep: str) -> None:
    job = Job(policy, keep)
    job.run(10)
    before = job.plan
    job.lose(FAST)
    lost = job.plan
    expected = before.global_batch if keep == "global" else sum(before.batch_sizes[:FAST])
    assert lost.global_batch == min(expected, 3 * 512)
    after = job.run(12)
    if policy in KEEPING_ALL:
        assert set(after) == {lost.global_batch}, "B is only shared anew"
    elif policy["name"] == "pid":
        assert after == pytest.approx([lost.global_batch] * 12, rel=0.05), "the times of the others are equal already"

    job.change(job.places.taking_in(FAST, job.plan))
    back = job.plan
    assert back.batch_sizes[FAST] and (keep == "local" or back.global_batch == after[-1])
    again = job.run(12)
    if policy in KEEPING_ALL:
        assert set(again) == {back.global_batch}
    if policy["name"] in ("proportional", "goodput", "lbb", "lbbsp", "pid") and "lbbsp" not in policy:
        assert job.plan.batch_sizes[FAST] > 2 * max(job.plan.batch_sizes[:FAST]), "its speed is known again"


@pytest.mark.parametrize(
    "policy", [one for one in ALL if one["name"] != "random" and one.get("ppo") != {"learn": True}], ids=named
)
def test_an_empty_place_changes_no_decision(policy: dict[str, Any]) -> None:
    """The model of the cluster, and what a learned policy sees, is of those that are there."""
    three, four = Job(policy, places=3), Job(policy)
    four.lose(FAST)
    four.plan = Plan(1, (*three.plan.batch_sizes, 0))
    for _ in range(15):
        three.run(1)
        four.run(1)
        assert four.plan.batch_sizes == (*three.plan.batch_sizes, 0)


@pytest.mark.parametrize("policy", [{"name": "proportional"}, {"name": "pid"}, {"name": "goodput"}], ids=named)
def test_another_machine_in_the_place_of_a_lost_worker_begins_anew(policy: dict[str, Any]) -> None:
    """The lost one was held back by a quota, and its CPU time told its speed. The other one has none, and spins."""
    job = Job(policy)
    of_job = job._record

    def held_back(rank: int) -> WindowRecord:
        found = of_job(rank)
        cpu_ratio = 4 * found.compute_s / found.duration_s
        return dataclasses.replace(found, throttled=0.5, cpu_cores=1.0, cpu_ratio=cpu_ratio) if rank == 0 else found

    def spinning(rank: int) -> WindowRecord:
        found = held_back(rank)
        return dataclasses.replace(found, throttled=0.0) if rank == 0 else found

    job._record = held_back  # type: ignore[method-assign]
    job.run(8)
    assert job.plan.batch_sizes[0] < 0.5 * job.plan.batch_sizes[2]
    job.lose(0)
    job.run(3)
    job._record = spinning  # type: ignore[method-assign]
    job.change(job.places.taking_in(0, job.plan))
    job.run(8)
    assert job.plan.batch_sizes[0] == pytest.approx(job.plan.batch_sizes[2], rel=0.25)


@pytest.mark.parametrize("name", ["proportional", "pid"])
def test_a_plan_need_not_stay_where_workers_have_come(name: str) -> None:
    job = Job({"name": name})
    for moved in (8, -8, 8, -8, 8):  # each change makes the policy wait longer
        first, second, *rest = job.plan.batch_sizes
        job.change(Plan(0, (first + moved, second - moved, *rest)))
        job.run(1)
    job.lose(FAST)
    job.run(2)
    job.change(job.places.taking_in(FAST, job.plan))
    job.run(2)
    assert job.plan.batch_sizes[FAST] > 2 * max(job.plan.batch_sizes[:FAST])
