"""One job of torchft in the study of membership: a replica is killed, and started again once the others train on."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.membership_job import BATCH, LIMIT_S, SETTLED, STRUCK_AT, WARM_UP, WORKERS, gaps
from benchmarks.testbed.ports import free_port

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """How long torchft waits.

    Attributes:
        join_s: its lighthouse, for replicas that live and have not asked for the next step.
        heartbeat_s: its lighthouse, for a sign of life. Replicas send one every 0.1 s.
        sum_s: a replica, for the sum of some gradients.
    """

    join_s: float
    heartbeat_s: float
    sum_s: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a replica notes.

    Attributes:
        step: its number.
        committed: else the gradients were thrown away.
        takes_part: its own gradients count.
        at_s: when it ended, on the monotonic clock.
    """

    step: int
    committed: bool
    takes_part: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the loss and the return of a replica cost the others.

    Attributes:
        iteration_s: median time of a step before.
        wait_s: from `kill -9` until all others have committed the step in which it came.
        entry_wait_s: the longest time between two steps of one of the others, of those while the newcomer enters.
        first_sample_s: from the start of the newcomer to its first committed step with its own gradients.
        lost: steps that one of the others did not commit itself.
        repeated: batches whose gradients one of the others threw away.
    """

    iteration_s: float
    wait_s: float
    entry_wait_s: float
    first_sample_s: float
    lost: int
    repeated: int


def run_job(venv: Path, limits: Limits, struck: int) -> Outcome:
    """Run one job, in which the replica `struck` is killed and comes back.

    Args:
        venv: a virtual environment with torchft.

    Raises:
        SystemExit: a process ended, or it took longer than LIMIT_S; the ends of all logs are in the text.
    """
    with tempfile.TemporaryDirectory(prefix="dx-torchft-") as name, ExitStack() as stack:
        folder = Path(name)
        job = _Job(venv, limits, folder, stack)
        job.start_lighthouse()
        for replica in range(WORKERS):
            job.start_replica(replica, ("--strike", STRUCK_AT, "--struck", folder / "struck") * (replica == struck))
        files = [folder / f"steps-{replica}" for replica in range(WORKERS)]
        job.wait(lambda: all(file.exists() for file in files))
        (folder / "go").touch()
        others = [file for file in files if file is not files[struck]]
        job.wait(lambda: all(_last(file) >= STRUCK_AT + SETTLED for file in others), going=struck)
        again, begun_s = folder / "steps-again", time.monotonic()
        job.start_replica(struck, steps=again)
        job.wait(lambda: _last(again) >= 0)
        entered = next(attempt.step for attempt in read(again) if attempt.committed)
        job.wait(lambda: all(_last(file) >= entered + SETTLED for file in (again, *others)))
        attempts = {number: read(file) for number, file in enumerate(others)}
        return outcome_of(attempts, read(again), float((folder / "struck").read_text()), begun_s)


class _Job:
    """Its processes, which all end with `stack`."""

    def __init__(self, venv: Path, limits: Limits, folder: Path, stack: ExitStack) -> None:
        self._venv, self._limits, self._folder, self._stack = venv, limits, folder, stack
        self._port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._deadline_s = time.monotonic() + LIMIT_S

    def start_lighthouse(self) -> None:
        limits = {"join_timeout_ms": self._limits.join_s, "heartbeat_timeout_ms": self._limits.heartbeat_s}
        words = (word for name, value_s in limits.items() for word in (f"--{name}", f"{1000 * value_s:.0f}"))
        bind = ("--bind", f"127.0.0.1:{self._port}", "--min_replicas", str(WORKERS - 1), "--quorum_tick_ms", "100")
        self._start("lighthouse", [str(self._venv / "bin" / "torchft_lighthouse"), *bind, *words])

    def start_replica(self, replica: int, strike: Sequence[object] = (), steps: Path | None = None) -> None:
        """Args: strike: when it shall end itself. steps: the file for its attempts."""
        options = {
            "replica": replica,
            "replicas-min": WORKERS - 1,
            "batch": BATCH,
            "sum-s": self._limits.sum_s,
            "steps": steps or self._folder / f"steps-{replica}",
            "go": self._folder / "go",
        }
        words = (str(word) for name, value in options.items() for word in (f"--{name}", value))
        module = ("-m", "benchmarks.studies.membership_torchft_replica")
        self._start(str(replica), [str(self._venv / "bin" / "python"), *module, *words, *map(str, strike)])

    def wait(self, ready: Callable[[], bool], going: int | None = None) -> None:
        """Wait for this while all processes run, but for the replica `going`. Raises SystemExit."""
        while not ready():
            ended = [name for name, one in self._processes.items() if name != str(going) and one.poll() is not None]
            if ended or time.monotonic() > self._deadline_s:
                what = f"{', '.join(ended)} ended" if ended else f"it takes longer than {LIMIT_S:g} s"
                logs = (f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in self._logs())
                raise SystemExit("\n".join([f"torchft: {what}; the ends of the logs:", *logs]))
            time.sleep(_POLL_S)

    def _logs(self) -> Sequence[Path]:
        return sorted(self._folder.glob("log-*"))

    def _start(self, name: str, command: Sequence[str]) -> None:
        address = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}", "GLOO_SOCKET_IFNAME": "lo"}
        environment = os.environ | address | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
        with (self._folder / f"log-{name}").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes[name] = process
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)


def read(file: Path) -> list[Attempt]:
    """The attempts of a replica; none if there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = (line.split() for line in lines)
    return [Attempt(int(step), done == "1", part == "1", float(at_s)) for step, done, part, at_s in found]


def _last(file: Path) -> int:
    """The last step that is committed; -1: there is none."""
    return max((attempt.step for attempt in read(file) if attempt.committed), default=-1)


def outcome_of(
    others: Mapping[int, Sequence[Attempt]], newcomer: Sequence[Attempt], struck_s: float, begun_s: float
) -> Outcome:
    """From the attempts of those that stayed and of the one that came back.

    Args:
        struck_s: when the replica was killed.
        begun_s: when the newcomer was started.
    """
    steps = {number: [(one.step, one.at_s) for one in each if one.committed] for number, each in others.items()}
    next_s = [min((at_s for step, at_s in each if step >= STRUCK_AT), default=math.inf) for each in steps.values()]
    entered = next(one.step for one in newcomer if one.committed)
    first_s = next((one.at_s for one in newcomer if one.committed and one.takes_part), math.inf)
    made = [{step for step, _ in each} for each in steps.values()]
    return Outcome(
        iteration_s=statistics.median(gaps(steps, WARM_UP + 1, STRUCK_AT)),
        wait_s=max(next_s) - struck_s,
        entry_wait_s=max(gaps(steps, entered, entered + SETTLED)),
        first_sample_s=first_s - begun_s,
        lost=sum(len(set(range(WARM_UP, max(each) + 1)) - each) for each in made),
        repeated=sum(not one.committed and one.step >= WARM_UP for each in others.values() for one in each),
    )
