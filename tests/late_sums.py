"""Sums that nobody can read before a wait for them: their places have NaN until then.

With `TESTS_OVERLAP=next_forward` in the environment, all forked workers train with this `overlap`, a bucket for each
parameter, and such sums. So whoever reads a gradient too early gets NaN.
"""

from __future__ import annotations

import os
from typing import Any

OVERLAP = "TESTS_OVERLAP"


def work(job: dict[str, Any]) -> dict[str, Any]:
    """`tests.cases.harness.work`, and how many buckets came after the trailer: `late`."""
    from tests.cases import harness
    from worker_hooks.exchange.gradient_exchange import GradientExchange

    late: list[str] = []
    arrive = GradientExchange.arrive

    def count(exchange: GradientExchange, bucket: Any, on_slow: Any) -> None:
        late.append(bucket.name)
        arrive(exchange, bucket, on_slow)

    GradientExchange.arrive = count  # type: ignore[method-assign]
    return {**harness.work(job), "late": len(late)}


def settings() -> dict[str, Any]:
    """Keys of the cluster file."""
    overlap = os.environ.get(OVERLAP)
    return {"overlap": overlap, "bucket_bytes": 1} if overlap else {}


def hide() -> None:
    """Hide the sums of this process, which are over gloo, if its environment says so."""
    if not os.environ.get(OVERLAP):
        return
    from dynamix_ps.comm.ring.gloo import GlooComm

    push_pull, wait, hidden = GlooComm.push_pull, GlooComm._wait, {}

    def push_and_hide(comm: GlooComm, name: str, buffer: Any, begin: int = 0) -> int:
        if comm.elastic is not None or not buffer.dtype.is_floating_point:
            return push_pull(comm, name, buffer, begin)
        travels = buffer.clone()
        handle = push_pull(comm, name, travels, begin)
        buffer[begin:] = float("nan")
        hidden[handle] = buffer, travels
        return handle

    def wait_and_show(comm: GlooComm, handle: int, timeout_s: float) -> bool:
        complete = wait(comm, handle, timeout_s)
        if complete and handle in hidden:
            buffer, travels = hidden.pop(handle)
            buffer.copy_(travels)
        return complete

    GlooComm.push_pull, GlooComm._wait = push_and_hide, wait_and_show  # type: ignore[method-assign]
