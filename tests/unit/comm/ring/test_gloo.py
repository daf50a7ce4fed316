"""Waiting for a ring's sums: gloo's own wait has a limit, NCCL's would break the ring, so it is polled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dynamix_ps.comm.ring.gloo import GlooComm
from dynamix_ps.comm.torch_buffers import TorchBuffers
from dynamix_ps.config import variables
from dynamix_ps.errors import PeerLostError
from tests.unit.comm.ring.test_elastic import closed_port


class NcclWork:
    """A sum that is complete from the nth question on. Waiting for it with a limit breaks it, as with NCCL."""

    def __init__(self, completed: Sequence[bool], fails: bool = False) -> None:
        self._completed, self._fails = list(completed), fails

    def is_completed(self) -> bool:
        return self._completed.pop(0) if len(self._completed) > 1 else self._completed[0]

    def wait(self, limit: timedelta | None = None) -> None:
        if limit is not None or self._fails:
            self._completed = [True]
            raise RuntimeError("NCCL communicator was aborted")

    def is_success(self) -> bool:
        return not self._fails


class LateWork:
    """A sum over gloo that is complete right after the limit of the wait for it."""

    def wait(self, limit: timedelta) -> None:
        raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


def ring(work: Any, on_gpu: bool = True) -> tuple[GlooComm, int]:
    """A ring whose sums are all `work`, and the handle of one that has started."""
    comm = GlooComm()
    comm.rank = 0
    comm._works, comm._on_gpu, comm._started = {}, set(), 0
    comm._ring = SimpleNamespace(sum=lambda buffer: work)  # type: ignore[assignment]
    comm._tensors = TorchBuffers({"cpu"})
    comm._tensors.check = lambda name, buffer: None  # type: ignore[method-assign]
    return comm, comm.push_pull("a", SimpleNamespace(is_cuda=on_gpu))


def test_a_late_worker_does_not_break_nccls_ring() -> None:
    comm, handle = ring(NcclWork([False] * 100 + [True]))
    assert not comm.wait(handle, 0.0)
    assert comm.wait(handle, 60.0)
    assert not comm._works and not comm._on_gpu


def test_a_missing_worker_is_noticed_in_time() -> None:
    comm, handle = ring(NcclWork([False]))
    assert not comm.wait(handle, 0.01)
    assert handle in comm._works


def test_nccls_error_means_a_lost_worker() -> None:
    comm, handle = ring(NcclWork([True], fails=True))
    with pytest.raises(PeerLostError, match=r"worker 0 lost the ring .NCCL communicator was aborted"):
        comm.wait(handle, 60.0)


def test_a_sum_that_is_complete_when_the_limit_has_passed_is_no_lost_worker() -> None:
    comm, handle = ring(LateWork(), on_gpu=False)
    assert comm.wait(handle, 0.01)
    assert not comm._works


@pytest.mark.parametrize(("wire", "hosts"), [("bf16", "a" * 6 + "b" * 6), ("auto", "a" * 16 + "b" * 16)])
def test_a_wire_that_would_send_more_bytes_is_given_up_and_told(wire: str, hosts: str) -> None:
    comm = GlooComm()
    comm._compress(wire, list(hosts))
    assert comm._compressed is None and not comm.wires
    assert f"each of the {len(hosts) // 2} workers on a host sends by itself" in comm.degradations[0]


def test_that_gradients_on_a_gpu_are_not_rounded_is_told() -> None:
    comm, _ = ring(NcclWork([True]))
    comm._compressed = SimpleNamespace(takes=lambda name, buffer: False)  # type: ignore[assignment]
    for _ in range(2):
        comm.push_pull("a", SimpleNamespace(is_cuda=True))
    assert [told.partition(":")[0] for told in comm.degradations] == [
        "cluster.wire has no effect on gradients on a GPU"
    ]


@pytest.mark.parametrize("late", [False, True])
def test_an_elastic_ring_begins_with_the_first_workers_and_who_comes_late_waits_for_nobody(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other places are empty."""
    host, _, port = closed_port().partition(":")
    given = {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "0",
        "DMLC_WORKER_ID": "2" if late else "0",
        "GLOO_SOCKET_IFNAME": "lo",
        variables.ELASTIC: "1",
        variables.FIRST_WORKERS: "2" if late else "1",
        variables.STARTS: "1" if late else "0",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DMLC_NODE_HOST", raising=False)
    comm = GlooComm()
    comm.init()
    assert comm.elastic is not None and (comm.elastic._worker.ring is None) is late
    comm.shutdown()
    comm.adopt({"least_bucket_bytes": 25_000})
    assert not comm.late, "it takes part from here on"
    assert comm.least_bucket_bytes == 25_000, "its buckets are those of the others"
