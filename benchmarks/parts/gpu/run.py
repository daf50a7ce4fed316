"""Runs the checks of `benchmarks.parts.gpu_check` one after the other, each in processes of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CHECK_LIMIT_S = 90.0
STALL_FAIL_S = 8.0
SIZES = (24, 40)  # batch sizes of the two workers
MEMORY_SIZES = (64, 448)  # those where the second worker lacks memory

Figures = dict[str, Any]
State = Literal["ok", "failed", "untried"]


class CheckFailed(Exception):
    """A check found something wrong, or could not run. `figures`: what was measured until then."""

    def __init__(self, reason: str, figures: Figures | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where checks run. `gpus` is 0 in a rehearsal on the CPU."""

    gpus: int
    name: str
    folder: Path

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def shared(self) -> bool:
        """Whether all workers have the same GPU."""
        return self.gpus == 1


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns figures, or raises CheckFailed. It is untried where a check of `needs` is not ok."""

    name: str
    about: str  # one sentence: what holds if it is ok
    run: Callable[[Machine], Figures]
    needs: tuple[str, ...] = ()
    least_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check went. `detail` says why it failed or was not tried."""

    name: str
    about: str
    state: State
    detail: str = ""
    figures: Figures = dataclasses.field(default_factory=dict)
    took_s: float = 0.0


def run_checks(
    checks: Sequence[Check],
    machine: Machine,
    limit_s: float,
    tell: Callable[[Sequence[Outcome]], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run all checks in order. `tell` gets what is known after each of them; none starts after `limit_s`."""
    outcomes: list[Outcome] = []
    begin_s = clock()
    for check in checks:
        started_s = clock()
        reason = _obstacle(check, machine, outcomes, started_s - begin_s, limit_s)
        outcome = Outcome(check.name, check.about, "untried", reason) if reason else _run(check, machine)
        outcomes.append(dataclasses.replace(outcome, took_s=round(clock() - started_s, 1)))
        tell(outcomes)
    return outcomes


def _obstacle(check: Check, machine: Machine, before: Sequence[Outcome], passed_s: float, limit_s: float) -> str:
    """Why the check cannot be tried; empty if it can."""
    if passed_s >= limit_s:
        return f"no time left: the limit is {limit_s:.0f} s"
    if check.least_gpus > machine.gpus:
        return f"needs {check.least_gpus} GPUs, there are {machine.gpus}"
    missing = [one.name for one in before if one.name in check.needs and one.state != "ok"]
    return f"needs {', '.join(missing)}" if missing else ""


def _run(check: Check, machine: Machine) -> Outcome:
    try:
        return Outcome(check.name, check.about, "ok", figures=check.run(machine))
    except CheckFailed as error:
        return Outcome(check.name, check.about, "failed", str(error), error.figures)
    except Exception as error:  # a fault of a check must not stop the others
        return Outcome(check.name, check.about, "failed", f"{type(error).__name__}: {error}")


def command(*arguments: str, env: Mapping[str, str] | None = None, limit_s: float = CHECK_LIMIT_S) -> tuple[int, str]:
    """Run a Python program in a process group of its own: its exit code, and the errors or the end of what it printed.

    Raises CheckFailed if it does not end in time; the whole group is then killed.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher stops its roles
            try:
                output, _ = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            raise CheckFailed(f"did not end within {limit_s:.0f} s: {_end(output)}") from None
    return process.returncode, _end(output)


def _end(output: str) -> str:
    """The errors in it; without any, its end."""
    errors = [line for line in output.splitlines() if "rror: " in line]
    return "\n".join(errors[:5])[:2000] if errors else output.strip()[-2000:]


def launch(
    machine: Machine, plane: str, mode: str, *options: str, sizes: tuple[int, int] = SIZES, settings: str = ""
) -> tuple[int, str, list[Figures]]:
    """Run two workers in this mode of worker.py: exit code, errors or end of output, figures of each worker.

    `settings`: further lines of the cluster file.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{plane}-{mode}-", dir=machine.folder))
    config = folder / "cluster.yaml"
    config.write_text(
        f"name: gpu-check\nmode: off\ncomm: {plane}\nemulation: none\nbatch: {{min: 1}}\n"
        f"cluster: {{workers: [{', '.join(f'{{batch: {size}}}' for size in sizes)}]}}\n"
        f"{settings}"
        f"timeouts: {{rpc_s: 0.5, lease_s: 1.0, stall_warn_s: 2.0, stall_fail_s: {STALL_FAIL_S}}}\n"
    )
    worker = ["python", "-m", "benchmarks.parts.gpu.worker", mode, "--device", machine.device, "--out", str(folder)]
    worker += ["--shared"] * machine.shared
    arguments = ["-m", "dynamix_ps.cli.main", "launch", "-c", str(config), "--run-dir", str(folder / "run"), "--"]
    gpus = {"NVIDIA_VISIBLE_DEVICES": ",".join(map(str, range(machine.gpus)))} if machine.gpus else {}
    code, output = command(*arguments, *worker, *options, env=gpus)
    return code, output, figures_in(folder)


def figures_in(folder: Path) -> list[Figures]:
    """What the workers have written, by rank."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("worker-*.json"))]


def trained(
    machine: Machine, plane: str, mode: str, *options: str, sizes: tuple[int, int] = SIZES, settings: str = ""
) -> list[Figures]:
    """The figures of both workers. Raises CheckFailed if one of them failed."""
    code, output, figures = launch(machine, plane, mode, *options, sizes=sizes, settings=settings)
    if code != 0 or len(figures) != len(SIZES):
        raise CheckFailed(f"exit code {code}: {output}", {"workers": figures})
    return figures


def free_port() -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
