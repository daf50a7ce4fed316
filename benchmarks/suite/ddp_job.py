"""A training over torch's DistributedDataParallel in a cell, with the hosts and quotas of its scenario.

The workers are plain processes (benchmarks/workloads/train_ddp.py) that get what torchrun would give them. They have
neither launcher nor arbitrator nor hook; quotas, links and the limit of time are those of the other contenders. Quotas
begin where training does, as in a job that the launcher runs.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite.contenders import Contender
from benchmarks.suite.placement import Scheduled
from benchmarks.suite.workloads import Workload
from dynamix_ps.cgroups import available_cores
from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady, JobFailed, TimedOut
from dynamix_ps.launch.cleanup.holdings import Holdings, make_scratch, new_scratch_path, new_shm_prefix
from dynamix_ps.launch.cleanup.release import release
from dynamix_ps.launch.emulation.speeds import Emulation, choose_emulation
from dynamix_ps.launch.host.process import RoleProcess, how_it_ended
from dynamix_ps.launch.messages.line_splitter import LineSplitter
from dynamix_ps.launch.roles.plan import RoleSpec, role_environment

SCRIPT = "benchmarks.workloads.train_ddp"
_LOOK_S = 0.1  # seldom, as training is being measured meanwhile

Line = dict[str, Any]


@dataclass(slots=True)
class DdpRecord:
    """What a training over DDP has told."""

    emulation: str
    evaluations: list[Line] = field(default_factory=list)
    end: Line | None = None  # None: it did not get there
    diverged: str = ""  # why
    out_of_time: str = ""  # why


def command_of(workload: Workload, chosen: Contender, sizes: Sequence[int], seed: int) -> tuple[str, ...]:
    """What each worker runs."""
    own = ("--lr-factor", str(chosen.lr_factor), "--seed", str(seed), "--sizes", *map(str, sizes))
    return (sys.executable, "-m", SCRIPT, *workload.options, *own)


def train(command: Sequence[str], config: Config, placement: Scheduled) -> DdpRecord:
    """Run all workers to their end.

    Args:
        config: the cluster file of the cell, for the workers' speeds and environment.

    Raises:
        EnvironmentNotReady: the workers could not be started, or their speeds not set.
        JobFailed: a worker failed.
    """
    run_id = secrets.token_hex(4)
    emulation = choose_emulation(config, run_id, available_cores())
    if emulation.method == "hook":
        raise EnvironmentNotReady(f"DDP has no hook that could slow down, got {emulation.description}; run as root")
    with _held(run_id, emulation):
        emulation.create()
        groups: tuple[Path | None, ...] = emulation.groups or (None,) * len(config.cluster.workers)
        port, _ = placement.ports(config.cluster)
        workers = []
        for rank, group in enumerate(groups):
            env = {
                **config.env,
                variables.RUN_ID: run_id,
                "PYTHONUNBUFFERED": "1",
                "GLOO_SOCKET_IFNAME": placement.interface,
                "MASTER_ADDR": placement.host,
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(groups)),
            }
            role = placement.place(RoleSpec(f"worker-{rank}", "worker", tuple(command), env, rank))
            workers.append(RoleProcess(role, role_environment(role, os.environ), group))
        return _Following(workers, emulation, placement).to_the_end()


@contextmanager
def _held(run_id: str, emulation: Emulation) -> Iterator[None]:
    """Nothing outlives the context: no process, no control group. If this process is killed, a later run cleans up."""
    scratch = make_scratch(new_scratch_path(run_id), sockets=0)
    groups = tuple(map(str, emulation.groups))
    holdings = Holdings(run_id, new_shm_prefix(run_id), str(scratch), groups)
    lock = holdings.save()
    try:
        yield
    finally:
        release(holdings)
        os.close(lock)


class _Following:
    """Follows the workers of a job, sets speeds and links, and passes on what they print."""

    def __init__(self, workers: Sequence[RoleProcess], emulation: Emulation, placement: Scheduled) -> None:
        self._workers, self._emulation, self._placement = workers, emulation, placement
        self._record = DdpRecord(emulation.description)
        self._splitters = {worker.spec.name: LineSplitter() for worker in workers}
        self._trained_s = 0.0
        self._since_s: float | None = None  # training goes on since this moment; None: it does not
        self._last_line = ""

    def to_the_end(self) -> DdpRecord:
        """Raises JobFailed if a worker fails, EnvironmentNotReady if speeds or links cannot change."""
        reading = {worker.pipe: worker for worker in self._workers}
        while reading or any(worker.running for worker in self._workers):
            for pipe in select.select(list(reading), [], [], _LOOK_S)[0]:
                data = reading[pipe].read()
                self._take(reading[pipe].spec.name, data or b"", final=data == b"")
                if data == b"":
                    del reading[pipe]
            for worker in self._workers:
                if worker.poll() and worker.exit_code:
                    self._take(worker.spec.name, b"".join(worker.drain()), final=True)
                    raise JobFailed(f"{worker.spec.name} {how_it_ended(worker.exit_code)}: {self._last_line}")
            try:
                self._tick()
            except TimedOut as error:
                self._record.out_of_time = str(error)
                break
        return self._record

    def _tick(self) -> None:
        if self._since_s is not None:
            self._placement.tick(self._trained_s + time.monotonic() - self._since_s, self._emulation)

    def _take(self, name: str, data: bytes, final: bool) -> None:
        for text in self._splitters[name].feed(data, final):
            if name == "worker-0" and text.startswith("{"):
                self._note(json.loads(text))
            else:
                self._last_line = text or self._last_line
                print(f"[{name}] {text}", flush=True)

    def _note(self, line: Line) -> None:
        kind, now_s = line["kind"], time.monotonic()
        if kind == "began":
            self._emulation.change(())
        elif self._since_s is not None:
            self._trained_s += now_s - self._since_s
        self._since_s = now_s if kind in ("began", "evaluation") else None
        if kind == "evaluation":
            self._record.evaluations.append(line)
        elif kind == "ended":
            self._record.end = line
        elif kind == "diverged":
            self._record.diverged = line["reason"]
