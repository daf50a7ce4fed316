"""The job of the soak: its launch, the events that happen to it, and what must hold at its end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from benchmarks.studies.faults.fault_job import left_of
from benchmarks.studies.launching import roles_of
from benchmarks.studies.membership.decided_windows import told_twice
from benchmarks.studies.membership.soak_events import KINDS, Event, Members, measure_pauses
from benchmarks.studies.membership.soak_training import history, wrong_memory, wrong_samples, wrong_weights
from benchmarks.studies.membership.soak_worker import over_file, weights_file
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import (
    BatchBounds,
    Cluster,
    Config,
    Elastic,
    Metrics,
    PolicySection,
    ServerSection,
    Timeouts,
    WorkerSection,
)
from dynamix_ps.launch.cleanup.release import end_processes
from dynamix_ps.run_record.run_folder import RunFolder

LOOK_S, MEMORY_EVERY_S = 0.1, 2.0
CHANGE_S, END_S, LEFT_S = 120.0, 120.0, 5.0  # the longest that a change, the end, and what is left then may take


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the job is, and how much happens to it.

    Attributes:
        fewest: workers that no event goes below.
        servers: 0: the workers are a ring.
        fewest_servers: the same of servers.
        during_s: from the first event to the last one, if each can happen when it is due.
        pause_s: of every worker after each step.
        seed: decides when what happens.
    """

    events: int
    during_s: float
    workers: int
    fewest: int
    servers: int
    pause_s: float
    fewest_servers: int = 2
    seed: int = 0

    def roles(self, role: str) -> tuple[int, int]:
        """How many of these roles there are, and how few."""
        return {
            "worker": (self.workers, self.fewest),
            "server": (self.servers, self.fewest_servers),
            "scheduler": (min(self.servers, 1), 0),
        }[role]


FULL = Plan(events=100, during_s=1800.0, workers=8, fewest=4, servers=3, pause_s=0.1)
SHORT = Plan(events=20, during_s=30.0, workers=4, fewest=2, servers=3, pause_s=0.02)
RING = Plan(events=12, during_s=18.0, workers=4, fewest=2, servers=0, pause_s=0.02)


@dataclass(slots=True)
class Outcome:
    """What has happened, and what is wrong.

    Attributes:
        iterations: that the job made.
    """

    events: list[Event] = field(default_factory=list)
    iterations: int = 0
    wrong: list[str] = field(default_factory=list)


def config_of(plan: Plan, folder: Path) -> Config:
    """The cluster file, with which all that is written comes to `folder`.

    A lost server takes workers with it that lack a sum which only it had. So more may be missing than by the events.
    """
    out = ("--out", str(folder), "--pause", str(plan.pause_s))
    return Config(
        name="soak",
        run_dir=str(folder / "runs"),
        comm="byteps" if plan.servers else "gloo",
        cluster=Cluster(
            servers=(ServerSection(),) * plan.servers or None, workers=(WorkerSection(batch=6),) * plan.workers
        ),
        batch=BatchBounds(min=1, max=64),
        elastic=Elastic(min_workers=1, restarts=1000),
        window=20,
        policy=PolicySection(name="random"),  # it makes a plan of every clean window
        metrics=Metrics(network="off", tensorboard=False),
        timeouts=Timeouts(rpc_s=1.0, lease_s=2.0),
        command=("python", "-m", "benchmarks.studies.membership.soak_worker", *out),
    )


class SoakJob:
    """A run of the plan in `folder`, which is empty before."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._chance = random.Random(plan.seed)
        self._members = Members(folder, RunFolder(folder / "runs" / "latest"), frozenset(range(plan.servers)))
        self._resident: dict[str, list[tuple[float, int]]] = {}
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Until the end; what does not end is killed."""
        wrong = self._outcome.wrong
        with self._launched() as launcher:
            try:
                self._soak(launcher)
            except TimeoutError as error:
                wrong.append(f"{error}:\n{self._output}")
            over_file(self._folder).touch()
            with suppress(psutil.TimeoutExpired):
                launcher.wait(END_S)
            if code := launcher.poll():
                wrong.append(f"dynamix launch ended with {code}:\n{self._output}")
            wrong += ["dynamix launch does not end"] if code is None else self._left()
        self._check()
        return self._outcome

    @contextmanager
    def _launched(self) -> Iterator[psutil.Popen]:
        file = self._folder / "soak.yaml"
        file.write_text(dump_config(config_of(self._plan, self._folder)))
        command = [sys.executable, "-m", "dynamix_ps", "launch", "-c", str(file)]
        with (self._folder / "output").open("wb") as out:
            launcher = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield launcher
        finally:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
                end_processes(self._run_id, grace_s=1.0)

    @property
    def _output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-3000:]

    @property
    def _run(self) -> RunFolder:
        return RunFolder((self._folder / "runs" / "latest").resolve())

    @property
    def _run_id(self) -> str:
        return self._run.path.name.rpartition("-")[2]

    def _left(self) -> list[str]:
        deadline_s = time.monotonic() + LEFT_S
        while (left := left_of(self._run_id)) and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        return [f"left behind: {one}" for one in left]

    def _soak(self, launcher: psutil.Popen) -> None:
        """Make all events happen, and wait for their effects and for a decision after each. Raises TimeoutError."""
        every, members = frozenset(range(self._plan.workers)), self._members
        changed_s = time.monotonic()
        due_s: list[float] | None = None  # until all train
        measured_s = 0.0
        while due_s is None or due_s or members.awaited or members.undecided:
            now_s = time.monotonic()
            if launcher.poll() is not None:
                raise TimeoutError("the job has ended before the last event")
            if due_s and now_s < due_s[0] and not members.awaited:
                changed_s = now_s  # nothing is to change yet
            if now_s > changed_s + CHANGE_S:
                raise TimeoutError(
                    f"nothing changes; events without effect: {list(members.awaited.values())}, without a decision "
                    f"after them: {members.undecided}"
                )
            awaited = len(members.awaited)
            members.look()
            if due_s is None and members.founded and members.present == every:
                spread = (self._chance.uniform(0.0, self._plan.during_s) for _ in range(self._plan.events))
                due_s = sorted(now_s + after_s for after_s in spread)
                changed_s = now_s
            if now_s >= measured_s + MEMORY_EVERY_S:
                measured_s = now_s
                self._measure(launcher, now_s)
                self._ask_again()
            if len(members.awaited) < awaited:
                changed_s = now_s
            if due_s and now_s >= due_s[0] and self._happens(launcher):
                due_s.pop(0)
                changed_s = now_s
            time.sleep(LOOK_S)

    def _happens(self, launcher: psutil.Popen) -> bool:
        """Make something happen now. Returns whether anything can."""
        pids = {name: process.pid for name, process in roles_of(launcher).items()}
        for kind in self._chance.sample(list(KINDS), len(KINDS)):
            role = KINDS[kind].role
            count, fewest = self._plan.roles(role)
            names = {slot: f"{role}-{slot}" if role != "scheduler" else role for slot in range(count)}
            roles = [(slot, pids.get(name, 0)) for slot, name in names.items()]
            if able := [one for one in roles if KINDS[kind].can(self._members, *one, fewest)]:
                event = self._members.begin(kind, *self._chance.choice(able), number=len(self._outcome.events))
                self._outcome.events.append(event)
                KINDS[kind].act(self._run, event)
                return True
        return False

    def _ask_again(self) -> None:
        """As `dynamix join` does: the process of the worker may not have ended at first."""
        for event in self._members.awaited.values():
            if KINDS[event.kind].enters:
                KINDS[event.kind].act(self._run, event)

    def _measure(self, launcher: psutil.Popen, now_s: float) -> None:
        """Who does not train yet still grows: it reads its libraries, and its state."""
        others = {f"worker-{rank}" for rank in range(self._plan.workers) if rank not in self._members.present}
        for name, process in {"launcher": launcher, **roles_of(launcher)}.items():
            if name in others:
                continue
            with suppress(psutil.NoSuchProcess):
                self._resident.setdefault(f"{name} ({process.pid})", []).append((now_s, process.memory_info().rss))

    def _check(self) -> None:
        self._members.look()
        told, outcome = self._members.told, self._outcome
        measure_pauses(outcome.events, told)
        sums, wrong = history(one for each in told.values() for one, _ in each)
        found = {rank: weights_file(self._folder, rank) for rank in self._members.present}
        weights = {rank: torch.load(file) for rank, file in found.items() if file.exists()}
        wrong += [f"worker {rank} has not finished" for rank in found.keys() - weights.keys()]
        struck = Counter(event.slot for event in outcome.events if KINDS[event.kind].role == "server")
        lost = self._members.servers_lost
        wrong += [f"server {slot} counts as lost without cause" for slot in lost if lost[slot] > struck[slot]]
        wrong += [f"worker {rank} tells window {window} twice" for rank, window in told_twice(self._run)]
        wrong += wrong_samples(sums) + wrong_weights(sums, weights) + wrong_memory(self._resident)
        outcome.iterations = len(sums)
        outcome.wrong += wrong
