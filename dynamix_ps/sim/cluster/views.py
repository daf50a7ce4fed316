"""The last simulated window as a View, which policies of live clusters read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.messages import LinkView, Plan, ServerView, SystemSample, WindowRecord
from dynamix_ps.policy.base import LR_RULES, View
from dynamix_ps.policy.window_arrays import OF_CLUSTER, OF_LINK, OF_RECORD, WindowArrays

SOURCE = "simulated"

_SERVER_CORES = 1.0  # a server's CPU use is known, not its cores


def views_of(report: WindowArrays, bytes_pushed: Whole, windows: Whole, versions: Whole) -> list[View]:
    """One view per environment. Every worker has reported, and none has paused.

    Args:
        report: the window, arrays of (E, W) and (E,).
        bytes_pushed: (E,), by each worker in the window.
        windows: (E,), how many each run has closed, this one included.
        versions: (E,), of the plan that ran.
    """
    shape = report.planned.shape
    workers = {name: _list(report, name, shape) for name in (*OF_RECORD, *OF_LINK, "low", "high", "planned")}
    cluster_names = (
        *OF_CLUSTER, "server_cpu", "server_unread_bytes", "server_unsent_bytes", "lr_rule", "reference_batch",
    )  # fmt: skip
    cluster = {name: _list(report, name, shape[:1]) for name in cluster_names}
    return [
        _view(
            {name: values[e] for name, values in workers.items()},
            {name: values[e] for name, values in cluster.items()},
            int(bytes_pushed[e]),
            int(windows[e]) - 1,
            Plan(int(versions[e]), tuple(workers["planned"][e])),
        )
        for e in range(shape[0])
    ]


def _list(report: WindowArrays, name: str, shape: tuple[int, ...]) -> list[Any]:
    values: list[Any] = np.broadcast_to(getattr(report, name), shape).tolist()
    return values


def _view(workers: dict[str, list[Any]], cluster: dict[str, float], bytes_pushed: int, window: int, plan: Plan) -> View:
    """A view from one list per quantity of the workers, and one value per quantity of the cluster."""
    iterations = round(cluster["iterations"])
    common: dict[str, Any] = {name: cluster[name] for name in OF_CLUSTER}
    common |= {
        "window": window,
        "first_iteration": window * iterations,
        "iterations": iterations,
        "plan_version": plan.version,
        "input_s": 0.0,
        "global_samples": iterations * plan.global_batch,
        "bytes_pushed": bytes_pushed,
        "network_age_s": 0.0,
    }
    records = []
    for rank, size in enumerate(plan.batch_sizes):
        own: dict[str, Any] = {name: workers[name][rank] for name in OF_RECORD}
        own["samples"] = iterations * size
        source = "none" if math.isnan(own["push_bytes_per_s"]) else SOURCE
        records.append(WindowRecord(rank=rank, batch_size=size, network_source=source, **own, **common))
    return View(
        window=window,
        plan=plan,
        bounds=tuple(zip(workers["low"], workers["high"], strict=True)),
        records=tuple(records),
        links=_links(workers),
        servers=_servers(cluster),
        lr_rule=LR_RULES[int(cluster["lr_rule"])],
        reference_batch=int(cluster["reference_batch"]),
    )


def _links(workers: dict[str, list[Any]]) -> tuple[LinkView, ...]:
    """Both directions of every link, as far as servers report them; servers count the same bytes as workers."""
    if math.isnan(workers["push_difference"][0]):
        return ()
    return tuple(
        LinkView(
            rank=rank,
            push_bytes_per_s=workers["push_bytes_per_s"][rank],
            pull_bytes_per_s=workers["pull_bytes_per_s"][rank],
            push_retransmits_per_s=workers["retransmits_per_s"][rank],
            push_rtt_s=workers["rtt_s"][rank],
            pull_rtt_s=workers["rtt_s"][rank],
            push_busy=workers["push_busy"][rank],
            source=SOURCE,
            age_s=0.0,
            **{name: workers[name][rank] for name in OF_LINK},
        )
        for rank in range(len(workers["planned"]))
    )


def _servers(cluster: dict[str, float]) -> tuple[ServerView, ...]:
    """The busiest server, where servers report."""
    if math.isnan(cluster["server_cpu"]):
        return ()
    return (
        ServerView(
            "server-0",
            unread_bytes=cluster["server_unread_bytes"],
            unsent_bytes=cluster["server_unsent_bytes"],
            system=SystemSample(cpu_ratio=cluster["server_cpu"] * _SERVER_CORES, cpu_cores=_SERVER_CORES),
            source=SOURCE,
            age_s=0.0,
        ),
    )
