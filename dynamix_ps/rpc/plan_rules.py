"""What a plan may be. The arbitrator checks the plans that workers hold, and every worker those it receives. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dynamix_ps.messages import LARGEST_VERSION, Plan

Bounds = tuple[tuple[int, int], ...]  # (smallest, largest) batch size per worker

LARGEST_STEP = 1 << 16  # plans that a worker may miss while it is cut off; chosen by us: a plan per second for 18 hours


def wrong_sizes(sizes: Sequence[int], bounds: Bounds) -> str:
    """Why these are not batch sizes for workers with these bounds; empty if they are."""
    if len(sizes) != len(bounds):
        return f"batch_sizes: got {len(sizes)} sizes, expected {len(bounds)}, one per worker"
    for rank, (size, (low, high)) in enumerate(zip(sizes, bounds, strict=True)):
        if not low <= size <= high:
            return f"batch_sizes: got {size} for worker {rank}, expected {low}..{high} as in the cluster file"
    if not any(sizes):
        return "batch_sizes: got 0 for all workers, expected at least one sample in all"
    return ""


def wrong_version(version: int, newest: int, step: int) -> str:
    """Why no plan can have this version where `newest` is the newest known one; empty if one can."""
    largest = min(newest + step, LARGEST_VERSION)
    if 0 <= version <= largest:
        return ""
    return f"version: got {version}, expected 0..{largest}; the newest one known is {newest}"


def wrong_plan(plan: Plan, held: Plan, bounds: Bounds) -> str:
    """Why a worker that holds the plan `held` does not take `plan`; empty if it does."""
    return wrong_version(plan.version, held.version, LARGEST_STEP) or wrong_sizes(plan.batch_sizes, bounds)
