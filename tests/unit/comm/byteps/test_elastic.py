"""The control of sums that outlive a worker: what goes through to BytePS, and what is refused."""

from __future__ import annotations

import importlib.util
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.comm import Declared
from dynamix_ps.comm.byteps.elastic import ElasticServer, ElasticWorker
from dynamix_ps.comm.byteps.exchange import Exchange
from dynamix_ps.comm.byteps.host_memory import HostMemory
from dynamix_ps.comm.byteps.torch_comm import torch_comm
from dynamix_ps.comm.elastic_job import is_elastic
from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.torch_buffers import TorchBuffers
from dynamix_ps.errors import EnvironmentNotReady, TrainingError
from dynamix_ps.membership.sums import SumProgress

SHARES = np.full(3, 1 / 3)


class FakeExchange:
    def __init__(self) -> None:
        self.frozen = False
        self.resumed: list[tuple[int, int, int, list[int]]] = []
        self.losses = [(1, 3), (0, 1), (2, 0)]
        self.entered: list[object] = []

    def freeze(self) -> None:
        self.frozen = True

    def status(self) -> tuple[int, dict[int, int]]:
        return 7, {2: 5}

    def unanswered(self) -> frozenset[int]:
        return frozenset({1})

    def resume(self, generation: int, round_number: int, contributions: int, servers: NDArray[np.int32]) -> bool:
        self.resumed.append((generation, round_number, contributions, servers.tolist()))
        return round_number in (7, 8)

    def expect(self, contributions: int) -> None:
        self.resumed.append((0, 0, contributions, []))

    def spread(self, servers: NDArray[np.int32]) -> None:
        self.entered.append(servers.tolist())

    def enter(self, generation: int, round_number: int, contributions: int) -> None:
        self.entered.append((generation, round_number, contributions))

    def next_loss(self, timeout_s: float) -> tuple[int, int] | None:
        return self.losses.pop(0) if self.losses else None


def test_freeze_resume_losses() -> None:
    fake = FakeExchange()
    worker = ElasticWorker(cast(Exchange, fake), lambda: SHARES)
    assert worker.freeze() == SumProgress(7, {2: 5}) and fake.frozen
    worker.resume(1, 8, 3, frozenset())
    with pytest.raises(ValueError, match="generation 2 at round 9: this worker is at round 7"):
        worker.resume(2, 9, 3, {1})
    worker.expect(2)
    assert fake.resumed == [(1, 8, 3, [0, 1, 2]), (2, 9, 3, [0, 2]), (0, 0, 2, [])], "never to a lost server"
    assert worker.unanswered() == {1}
    worker.enter(3, 12, 4, {0})
    assert fake.entered == [[1, 2], (3, 12, 4)], "before its first push, over those that are left"
    lost = [worker.next_loss(0.0) for _ in range(4)]
    assert lost == [PeerFailure("worker", 3), PeerFailure("server", 1), PeerFailure("scheduler", 0), None]


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), (None, False)])
def test_when_a_run_is_elastic(value: str | None, expected: bool) -> None:
    assert is_elastic({} if value is None else {"DYNAMIX_ELASTIC": value}) is expected


def test_elastic_runs_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNAMIX_SHARED_MEMORY", raising=False)

    def shares() -> bool:
        return HostMemory(cast(Exchange, None), 0, [], lambda name, data: [], print).workers_sum

    assert shares()
    monkeypatch.setenv("DYNAMIX_ELASTIC", "1")
    assert not shares()
    comm = torch_comm()
    comm.elastic = ElasticWorker(cast(Exchange, FakeExchange()), lambda: SHARES)
    memory = comm.allocate(3, "float32")  # no other worker is asked
    assert memory.dtype == np.float32 and memory.tolist() == [0, 0, 0]


def test_a_sum_goes_to_a_buffer_of_the_same_size_and_type() -> None:
    comm = torch_comm()
    comm._plugin._tensors = TorchBuffers({"cpu"})  # type: ignore[attr-defined]
    comm._numbers, comm._declared = {"a": 0}, {0: Declared(placed_bytes=12)}
    mine = torch.zeros(3)
    for other in (torch.zeros(4), torch.zeros(3, dtype=torch.int32)):
        with pytest.raises(ValueError, match="the sum of 'a' is to go to"):
            comm.push_pull_into("a", mine, other)


def test_who_has_left_takes_part_in_no_sum() -> None:
    comm = torch_comm()
    comm._numbers, comm.left = {"a": 0}, True
    with pytest.raises(TrainingError, match="this worker has left the job, so it can take part in 'a' no more"):
        comm._prepared("a", np.zeros(3, np.float32))


def test_a_server_without_byteps_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentNotReady, match="dynamix build-byteps"):
        ElasticServer()
