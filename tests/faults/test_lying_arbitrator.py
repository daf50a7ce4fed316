"""Invariant 4: the arbitrator lies. A wrong plan is refused with one event, and training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.plan_rules import LARGEST_STEP
from tests.proven import add_servicer
from tests.unit.worker_hooks.local_run import lines, make_run, train

pytestmark = pytest.mark.timeout(120)

RIGHT = pb.Plan(version=1, batch_sizes=[12])


class Liar(pb_grpc.ArbitratorServicer):
    """Answers every registration with a wrong plan, and sends it again before the right one."""

    def __init__(self, lie: pb.Plan) -> None:
        self._lie = lie

    def Register(self, request: Any, context: Any) -> pb.RegisterReply:
        return pb.RegisterReply(plan=self._lie)

    def Plans(self, request: Any, context: Any) -> Iterator[pb.Plan]:
        yield self._lie
        yield RIGHT
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()

    def Report(self, request: Any, context: Any) -> pb.ReportReply:
        return pb.ReportReply()

    def Heartbeat(self, request: Any, context: Any) -> pb.HeartbeatReply:
        return pb.HeartbeatReply()

    def Leave(self, request: Any, context: Any) -> pb.LeaveReply:
        return pb.LeaveReply()


@contextmanager
def arbitrator(liar: Liar) -> Iterator[ArbitratorAccess]:
    """What leads to it."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_servicer(liar, server, "t")
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield ArbitratorAccess(f"127.0.0.1:{port}", "test", "t", Timeouts())
    finally:
        server.stop(0)


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        (pb.Plan(version=1 << 24, batch_sizes=[8]), "version: got 16777216"),
        (pb.Plan(version=LARGEST_STEP + 1, batch_sizes=[8]), "version: got 65537"),
        (pb.Plan(version=2, batch_sizes=[33]), "got 33 for worker 0, expected 1..32"),
        (pb.Plan(version=2, batch_sizes=[8, 8]), "got 2 sizes, expected 1"),
    ],
    ids=["version beyond the vote", "version far ahead", "size out of bounds", "too many workers"],
)
def test_a_wrong_plan_is_refused_once_and_the_right_one_after_it_counts(
    tmp_path: Path, lie: pb.Plan, problem: str
) -> None:
    with arbitrator(Liar(lie)) as access:
        run = make_run(tmp_path, mode="adapt", bounds=((1, 32),), arbitrator=access)
        train_until(run, lambda: run.batch_size == 12)
    degraded = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert len(degraded) == 1
    assert degraded[0].startswith(f"plan {lie.version} refused: ")
    assert problem in degraded[0]
    assert [line["version"] for line in lines(tmp_path) if line["kind"] == "plan_applied"] == [1]


def test_an_answer_that_is_no_plan_is_an_outage_and_training_goes_on(tmp_path: Path) -> None:
    with arbitrator(Liar(pb.Plan(version=2, batch_sizes=[-8]))) as access:
        run = make_run(tmp_path, mode="adapt", bounds=((1, 32),), arbitrator=access)
        file = tmp_path / "workers" / "worker-0.jsonl"  # a thread writes it
        train_until(run, lambda: file.exists() and '"degraded"' in file.read_text())
    degraded = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert len(degraded) == 1
    assert "its answer makes no sense: plan.batch_sizes: got -8" in degraded[0]
    assert run.batch_size == 8


def train_until(run: Any, enough: Callable[[], bool]) -> None:
    """Train until `enough` is true and one iteration more, and close."""
    while not enough():
        train(run, iterations=run.iteration + 1)
    train(run, iterations=run.iteration + 1)
    run.close()
