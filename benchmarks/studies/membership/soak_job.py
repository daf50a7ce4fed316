"""The job of the soak: its launch, the events that happen to it, and what must hold at its end."""

from __future__ import annotations

import random
import shutil
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
from benchmarks.studies.membership.soak_events import BACK, GONE, KINDS
from benchmarks.studies.membership.soak_launch import hosts_file
from benchmarks.studies.membership.soak_limits import DISK_BYTES, left_on_machine
from benchmarks.studies.membership.soak_members import Members, measure_pauses
from benchmarks.studies.membership.soak_place import HOME
from benchmarks.studies.membership.soak_plan import Plan, config_of
from benchmarks.studies.membership.soak_site import Event, Site
from benchmarks.studies.membership.soak_training import history, wrong_memory, wrong_samples, wrong_weights
from benchmarks.studies.membership.soak_worker import over_file, weights_file
from benchmarks.testbed.bed import Bed
from benchmarks.testbed.link import Link
from benchmarks.testbed.small_disk import small_disk
from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config
from dynamix_ps.launch.cleanup.release import end_processes
from dynamix_ps.membership.messages import incarnation_of
from dynamix_ps.run_record.run_folder import RunFolder

LOOK_S, MEMORY_EVERY_S = 0.1, 2.0
LONGEST_PAUSE = 10  # leases: of a coordinator that is cut off, of those that are lost meanwhile, and of what overlaps
CHANGE_S, END_S, LEFT_S = 120.0, 120.0, 5.0  # the longest that a change, the end, and what is left then may take


@dataclass(slots=True)
class Outcome:
    """What has happened, and what is wrong.

    Attributes:
        iterations: that the job made.
    """

    events: list[Event] = field(default_factory=list)
    iterations: int = 0
    wrong: list[str] = field(default_factory=list)


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
        runs = self._folder / "runs"
        runs.mkdir()
        with (
            small_disk(runs, DISK_BYTES),
            Bed({name: Link() for name in (HOME, *self._plan.hosts)}) as bed,
            self._launched(bed) as launcher,
        ):
            try:
                self._soak(launcher, Site(self._folder, self._run, bed))
            except TimeoutError as error:
                wrong.append(f"{error}:\n{self._output}")
            over_file(self._folder).touch()
            with suppress(psutil.TimeoutExpired):
                launcher.wait(END_S)
            if code := launcher.poll():
                wrong.append(f"dynamix launch ended with {code}:\n{self._output}")
            wrong += ["dynamix launch does not end"] if code is None else self._left()
            self._check()
            if wrong:
                shutil.copytree(runs, self._folder / "runs-kept", symlinks=True)  # the disk goes
        wrong += [f"left behind: {one}" for one in left_on_machine(self._folder)]
        return self._outcome

    @contextmanager
    def _launched(self, bed: Bed) -> Iterator[psutil.Popen]:
        file = self._folder / "soak.yaml"
        file.write_text(dump_config(config_of(self._plan, self._folder, bed.address(HOME))))
        hosts = hosts_file(self._folder, bed, (HOME, *self._plan.hosts))
        program = ("-m", "benchmarks.studies.membership.soak_launch", "-c", str(file), "--hosts", str(hosts))
        with (self._folder / "output").open("wb") as out:
            launcher = psutil.Popen(
                [*bed.inside(HOME), sys.executable, *program],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
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
        return RunFolder(self._folder / "runs" / "latest")

    @property
    def _run_id(self) -> str:
        return self._run.path.resolve().name.rpartition("-")[2]

    def _left(self) -> list[str]:
        deadline_s = time.monotonic() + LEFT_S
        while (left := left_of(self._run_id)) and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        return [f"left behind: {one}" for one in left]

    def _soak(self, launcher: psutil.Popen, site: Site) -> None:
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
                    f"nothing changes; events that are not over: {list(members.awaited.values())}, without a decision "
                    f"after them: {members.undecided}"
                )
            awaited = len(members.awaited)
            members.look()
            self._go_on(site, now_s)
            if due_s is None and members.founded and members.present == every:
                spread = (self._chance.uniform(0.0, self._plan.during_s) for _ in range(self._plan.events))
                due_s = sorted(now_s + after_s for after_s in spread)
                changed_s = now_s
            if now_s >= measured_s + MEMORY_EVERY_S:
                measured_s = now_s
                self._measure(launcher, now_s)
                self._ask_again(site)
            if len(members.awaited) < awaited:
                changed_s = now_s
            if due_s and now_s >= due_s[0] and self._happens(launcher, site):
                due_s.pop(0)
                changed_s = now_s
            time.sleep(LOOK_S)

    def _happens(self, launcher: psutil.Popen, site: Site) -> bool:
        """Make something happen now, of the kinds that have come least. Returns whether anything can."""
        pids = {name: process.pid for name, process in roles_of(launcher).items()}
        events, plan = self._outcome.events, self._plan
        times = Counter(event.kind for event in events)
        for key in sorted(KINDS, key=lambda key: (times[key], self._chance.random())):
            kind = KINDS[key]
            roles = [(name, slot, pids.get(name, 0)) for slot, name in enumerate(plan.names(kind.role))]
            fewest = plan.fewest_of(kind.role)
            if able := [(name, pid) for name, slot, pid in roles if self._members.can(kind, name, slot, pid, fewest)]:
                lasts_s, strength = plan.lease_s * self._chance.uniform(*kind.lasts), self._chance.random()
                event = self._members.begin(len(events), key, *self._chance.choice(able), lasts_s, strength)
                event.incarnation = _incarnation(event.pid)
                events.append(event)
                kind.begin(site, event)
                return True
        return False

    def _go_on(self, site: Site, now_s: float) -> None:
        """Let what lasts go on or end, and what is over be over."""
        for event in list(self._members.awaited.values()):
            kind = KINDS[event.kind]
            if event.healed_s is None:
                if now_s < event.at_s + event.lasts_s or (kind.effect == GONE and event.effect_s is None):
                    kind.during(site, event)
                    continue
                kind.end(site, event)
                event.healed_s = time.monotonic()
            if event.effect_s is not None and not (kind.effect == GONE and _runs(event.pid)):
                self._members.over(event)

    def _ask_again(self, site: Site) -> None:
        """As `dynamix join` does: the process of the worker may not have ended at first."""
        for event in self._members.awaited.values():
            if KINDS[event.kind].effect == BACK:
                KINDS[event.kind].begin(site, event)

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
        limit_s = LONGEST_PAUSE * self._plan.lease_s
        long = [event for event in outcome.events if event.pause_s > limit_s]
        outcome.wrong += [
            f"{event.kind} of {event.role}: the others stood still for {event.pause_s:.1f} s" for event in long
        ]
        sums, wrong = history(one for each in told.values() for one, _ in each)
        found = {rank: weights_file(self._folder, rank) for rank in self._members.present}
        weights = {rank: torch.load(file) for rank, file in found.items() if file.exists()}
        wrong += [f"worker {rank} has not finished" for rank in found.keys() - weights.keys()]
        wrong += self._members.without_cause(outcome.events)
        wrong += [f"worker {rank} tells window {window} twice" for rank, window in told_twice(self._run)]
        wrong += wrong_samples(sums) + wrong_weights(sums, weights) + wrong_memory(self._resident)
        outcome.iterations = len(sums)
        outcome.wrong += wrong


def _incarnation(pid: int) -> str:
    try:
        starts = psutil.Process(pid).environ().get(variables.STARTS) if pid else None
    except psutil.NoSuchProcess:  # it has just ended
        return ""
    return "" if starts is None else incarnation_of(int(starts))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
