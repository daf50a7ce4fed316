"""Which worker delays the others, and why: slow compute or a slow link? Pure.

Workers train in step, so an iteration takes equally long on all of them. A waiting worker cannot know for whom it
waits: one slow link blocks all workers alike. The diagnosis therefore compares how workers spend their time:

    own      compute and input, as a fraction of the window's duration
    network  data in flight to or from the servers, as the kernel counts it (`push_busy` + `pull_busy`),
             at most 1 - own: pushes that overlap compute delay nobody
    demand   own + network

A worker delays the others if its demand is within MARGIN of the largest, and more than MARGIN above the median of the
others (the lower one of two). The cause is the part that exceeds the others' median more. A CPU quota (`throttled`)
also slows sending and reading, which looks like a slow link, so throttled time counts as compute. If all workers are
alike, no worker delays the others; neither does a server that is slow for all. A worker that others wait for because
its batch is large is not slow: the cause is compute only where a sample takes more than MARGIN longer than on the
fastest worker. MARGIN, medians and sums are chosen by us.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from dynamix_ps.messages import LinkView, WindowRecord

MARGIN = 0.1  # of the window's duration, or of the fastest worker's time per sample


def labelled(records: Sequence[WindowRecord | None], links: Sequence[LinkView]) -> tuple[LinkView, ...]:
    """The links with `slow` filled in."""
    found = diagnose(records, links)
    return tuple(dataclasses.replace(link, slow=found[link.rank]) if found[link.rank] else link for link in links)


def diagnose(records: Sequence[WindowRecord | None], links: Sequence[LinkView]) -> tuple[str, ...]:
    """By rank: "compute", "link", or "" for a worker that does not delay the others.

    Workers without a record are left out. A window with a pause gives "" for all. An unknown busy time counts as the
    median of the known ones.
    """
    reported = {record.rank: record for record in records if record is not None and record.duration_s > 0}
    nobody = ("",) * len(records)
    if len(reported) < 2 or any(record.flagged for record in reported.values()):
        return nobody
    own = {rank: min(1.0, (r.compute_s + r.input_s) / r.duration_s) for rank, r in reported.items()}
    by_rank = {link.rank: link for link in links}
    pushing = _filled({rank: by_rank[rank].push_busy if rank in by_rank else math.nan for rank in reported})
    pulling = _filled({rank: by_rank[rank].pull_busy if rank in by_rank else math.nan for rank in reported})
    network = {rank: min(1.0 - own[rank], pushing[rank] + pulling[rank]) for rank in reported}
    demand = {rank: own[rank] + network[rank] for rank in reported}
    bar = max(demand.values()) - MARGIN
    held_back = _filled({rank: record.throttled for rank, record in reported.items()})
    computing = {rank: own[rank] + held_back[rank] for rank in reported}
    slow_cpu = _excess(computing)
    busy_s = {rank: computing[rank] * record.duration_s for rank, record in reported.items()}
    per_sample_s = {rank: busy_s[rank] / r.samples if r.samples else math.inf for rank, r in reported.items()}
    slower_s = (1 + MARGIN) * min(per_sample_s.values())
    demand_above, network_above = _excess(demand), _excess(network)
    found = list(nobody)
    for rank in reported:
        if demand[rank] >= bar and demand_above[rank] > MARGIN:
            if slow_cpu[rank] < network_above[rank]:
                found[rank] = "link"
            elif per_sample_s[rank] > slower_s:
                found[rank] = "compute"
    return tuple(found)


def _excess(values: Mapping[int, float]) -> dict[int, float]:
    """How far each of two or more values is above the lower median of the others."""
    ordered = sorted(values.values())
    middle = (len(ordered) - 2) // 2  # index among the others; in `ordered` it is one higher if the value comes before
    return {rank: value - ordered[middle + (value <= ordered[middle])] for rank, value in values.items()}


def _filled(values: Mapping[int, float]) -> dict[int, float]:
    """Unknown values replaced by the lower median of the known ones; by 0 if none is known."""
    known = [value for value in values.values() if not math.isnan(value)]
    middle = statistics.median_low(known) if known else 0.0
    return {rank: middle if math.isnan(value) else value for rank, value in values.items()}
