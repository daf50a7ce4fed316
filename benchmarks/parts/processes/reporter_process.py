"""A process that acts as many workers towards the arbitrator: each has its connection, its calls and its stream."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dynamix_ps.messages import Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.open_files import raise_open_files
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.auth import GREET, call_metadata, greeting_metadata
from dynamix_ps.rpc.channel import client_options
from dynamix_ps.rpc.session import ClientSession
from dynamix_ps.token_proof import random_number

_SERVICE = "/dynamix.arbitrator.Arbitrator/"
_CALL_S = 60.0  # this machine may be slow
_REGISTERING = 32  # at a time
_FILES = 4096
_PLAN_S = 5.0  # until a window without a new plan is over


@dataclass(frozen=True)
class Part:
    """The workers of one process. `plan`: what all begin with."""

    access: ArbitratorAccess
    ranks: tuple[int, ...]
    plan: Plan


@dataclass(frozen=True)
class Window:
    """What they report. `alone`: the last record, which is sent when all others of all processes have arrived."""

    reports: tuple[tuple[WindowRecord, RoleReport], ...]
    alone: tuple[WindowRecord, RoleReport] | None


def run(part: Part, pipe: Connection) -> None:
    """The process: `ready`, then for each Window that comes `reported`, and after a word the times of the new plan."""
    raise_open_files(_FILES)
    asyncio.run(_serve(part, pipe))


async def _serve(part: Part, pipe: Connection) -> None:
    arrivals = _Arrivals(len(part.ranks))
    workers = {rank: _Worker(part, rank, arrivals) for rank in part.ranks}
    turns = asyncio.Semaphore(_REGISTERING)
    await asyncio.gather(*(worker.begin(turns) for worker in workers.values()))
    gc.collect()
    gc.freeze()  # a later collection over so many connections would delay what comes
    pipe.send("ready")
    while (window := await asyncio.to_thread(pipe.recv)) is not None:
        calls = [(workers[record.rank], _request(record, report)) for record, report in window.reports]
        alone = window.alone and (workers[window.alone[0].rank], _request(*window.alone))
        arrivals.begin()
        await asyncio.gather(*(worker.call("Report", request) for worker, request in calls))
        pipe.send("reported")
        await asyncio.to_thread(pipe.recv)
        sent_s = time.monotonic()
        if alone:
            await alone[0].call("Report", alone[1])
        pipe.send((sent_s if alone else None, await arrivals.all()))
        for worker in workers.values():
            worker.check()
    await asyncio.gather(*(worker.leave() for worker in workers.values()))
    pipe.send("left")


class _Arrivals:
    """When the newest plan has come to each worker. All get the same bytes, which are read once.

    Real workers read them on machines of their own; here it would be on the cores of the arbitrator.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._newest, self._plan = b"", Plan(0, ())
        self._moments_s: list[float] = []
        self._all = asyncio.Event()

    def begin(self) -> None:
        """Count the plans that arrive from now on."""
        self._moments_s = []
        self._all.clear()

    def came(self, message: bytes) -> None:
        """Note the arrival of a plan at one worker."""
        moment_s = time.monotonic()
        if message != self._newest:
            plan = convert.plan_from_proto(pb.Plan.FromString(message))
            if plan.version < self._plan.version:
                return
            self._newest, self._plan, self._moments_s = message, plan, []
        self._moments_s.append(moment_s)
        if len(self._moments_s) == self._workers:
            self._all.set()

    async def all(self) -> tuple[Plan | None, list[float]]:
        """The plan and the moments when all have it; nothing if none comes."""
        try:
            await asyncio.wait_for(self._all.wait(), _PLAN_S)
        except asyncio.TimeoutError:
            return None, []
        return self._plan, self._moments_s


def _request(record: WindowRecord, report: RoleReport) -> bytes:
    identity = convert.identity_to_proto(record.rank, _incarnation(record.rank))
    observed = convert.role_report_to_proto(report)
    return pb.ReportRequest(
        identity=identity, record=convert.record_to_proto(record), observed=observed
    ).SerializeToString()


def _incarnation(rank: int) -> str:
    return f"life-{rank}"


class _Worker:
    """One worker: it registers, follows the plans, and keeps its lease."""

    def __init__(self, part: Part, rank: int, arrivals: _Arrivals) -> None:
        import grpc.aio  # not before dynamix_ps.rpc, which switches handlers of forks off

        access, self._plan, self._rank, self._arrivals = part.access, part.plan, rank, arrivals
        self._access = access
        self._beat_s = access.timeouts.lease_s / 3
        options = client_options(len(part.plan.batch_sizes))
        self._channel: Any = grpc.aio.insecure_channel(access.address, options=options)
        self._identity = convert.identity_to_proto(rank, _incarnation(rank))
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, turns: asyncio.Semaphore) -> None:
        registration = Registration(self._rank, _incarnation(self._rank), "host", 1, self._plan)
        async with turns:
            own = random_number()
            greet = self._channel.unary_unary(GREET)
            reply = await greet(b"", metadata=greeting_metadata(own), timeout=_CALL_S, wait_for_ready=True)
            self._session = ClientSession(self._access.token, own, reply)
            await self.call("Register", convert.registration_to_proto(registration).SerializeToString())
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_lease())]

    async def call(self, name: str, request: bytes) -> None:
        method = _SERVICE + name
        call, proven = self._session.call(method)
        metadata = call_metadata(self._access.run_id, proven)
        send = self._channel.unary_unary(method)
        call.open(await send(call.seal(request), metadata=metadata, timeout=_CALL_S, wait_for_ready=True))

    def check(self) -> None:
        """Raises the error that has ended the stream or the heartbeats of the worker."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.call("Leave", pb.LeaveRequest(identity=self._identity).SerializeToString())
        await self._channel.close()

    async def _follow(self) -> None:
        request = pb.PlansRequest(identity=self._identity, newest_version=0).SerializeToString()
        method = f"{_SERVICE}Plans"
        call, proven = self._session.call(method)
        metadata = call_metadata(self._access.run_id, proven)
        async for plan in self._channel.unary_stream(method)(call.seal(request), metadata=metadata):
            self._arrivals.came(call.open(plan))

    async def _keep_lease(self) -> None:
        await asyncio.sleep(random.random() * self._beat_s)
        request = pb.HeartbeatRequest(identity=self._identity, iteration=1).SerializeToString()
        while True:
            await self.call("Heartbeat", request)
            await asyncio.sleep(self._beat_s)
