"""The sizes of a plan where workers come and go: the same on all workers and in the arbitrator. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from dynamix_ps.apportion import apportion
from dynamix_ps.config.schema import Keep
from dynamix_ps.messages import Plan

Bounds = Sequence[tuple[int, int]]  # (smallest, largest) size of every worker


def shared_out(plan: Plan, total: int, weights: Sequence[float], bounds: Bounds | None = None) -> Plan:
    """`plan` with a global batch of `total`, in proportion to `weights`, one per worker.

    `bounds`: none: there are no bounds. The global batch is another one where the workers together cannot have it.
    """
    low, high = zip(*(bounds or [(0, total)] * len(weights)), strict=True)
    return replace(plan, batch_sizes=apportion(min(max(total, sum(low)), sum(high)), weights, low, high))


def within_total(sizes: Sequence[int], bounds: Bounds, largest: float) -> tuple[int, ...]:
    """`sizes`, in proportion smaller where together they exceed `largest`, as far as the bounds allow.

    `largest`: NaN: it is not known.
    """
    if not sum(sizes) > largest:
        return tuple(sizes)
    low = [min(size, own) for size, (own, _) in zip(sizes, bounds, strict=True)]
    return apportion(max(int(largest), sum(low)), sizes, low, sizes)


def left_to_others(plan: Plan, ranks: Collection[int], bounds: Bounds | None = None, keep: Keep = "global") -> Plan:
    """`plan` without these workers, which are not there. The others share what they have in it, as they share the rest.

    Args:
        bounds: none: there are no bounds.
        keep: what stays: the global batch, or the sizes of the others; but the global batch where they have nothing.
    """
    sizes = [0 if rank in ranks else size for rank, size in enumerate(plan.batch_sizes)]
    total = sum(sizes) if keep != "global" and any(sizes) else plan.global_batch
    own = bounds or [(0, total)] * len(sizes)
    return shared_out(plan, total, sizes, [(0, 0) if rank in ranks else one for rank, one in enumerate(own)])


def taken_in(
    plan: Plan,
    ranks: Collection[int],
    slot_sizes: Sequence[int],
    bounds: Bounds | None = None,
    keep: Keep = "global",
) -> Plan:
    """`plan` with these workers, too, which enter. Each gets what it has by itself, compared with the others.

    Args:
        ranks: of workers without samples.
        slot_sizes: `batch` of every worker in the cluster file.
        bounds: those of workers that are not there are 0. None: there are no bounds.
        keep: what stays: the global batch, or the mean size of a worker.
    """
    sizes, total = plan.batch_sizes, plan.global_batch
    others = [rank for rank, size in enumerate(sizes) if size and rank not in ranks]
    scale = total / sum(slot_sizes[rank] for rank in others)
    weights = [slot_sizes[rank] * scale if rank in ranks else float(size) for rank, size in enumerate(sizes)]
    if keep != "global":
        total = round(total * (1 + len(ranks) / len(others)))
    return shared_out(plan, total, weights, bounds)
