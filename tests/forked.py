"""Workers of a small job in a third of a second: forked from a process that has imported torch already.

    with ForkServer("torch") as server:
        ended = server.run("tests.cases.harness:work", "clip_by_norm", workers=2)

Every worker is a process of its own with the environment that a launcher would give it, on the gloo data plane. It
calls the function with the argument, and ends as a script does that Python runs: with the hook for uncaught exceptions
and with what is registered at exit.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.testbed.ports import free_port
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from tests import late_sums
from tests.launching import environment

KILLED = -signal.SIGKILL
# What workers import when they need it: the server does it for all.
NEEDED_LATER = ("dynamix_ps.comm.ring.gloo", "dynamix_ps.metrics.network.monitor", "pyroute2")


@dataclass(frozen=True, slots=True)
class Worker:
    """How one worker ended."""

    code: int  # exit code; negative: the signal that ended it
    output: str
    result: Any  # what the function returned; None if it did not return


class ForkServer:
    """Forks workers on demand. A context manager; nothing outlives it."""

    def __init__(self, imports: str) -> None:
        """`imports`: module that the server imports before it forks."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", imports],
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        call: str,
        argument: Any,
        folder: Path,
        sizes: tuple[int, ...] = (24, 8),
        limit_s: float = 60.0,
        own: tuple[dict[str, str], ...] = (),
        **settings: Any,
    ) -> list[Worker]:
        """Run `module:function` with `argument` (JSON) in one worker per size, and wait until all have ended.

        Workers that have not after `limit_s` are killed. `own`: variables of single workers; `settings`: keys of the
        cluster file.
        """
        self.start(call, argument, folder, sizes, limit_s, own, **settings)
        return self.wait()

    def start(
        self,
        call: str,
        argument: Any,
        folder: Path,
        sizes: tuple[int, ...],
        limit_s: float,
        own: tuple[dict[str, str], ...] = (),
        **settings: Any,
    ) -> None:
        """The same without waiting; `wait` comes next."""
        self._folder = folder
        job = {
            "call": call,
            "argument": argument,
            "folder": str(folder),
            "limit_s": limit_s,
            "environment": worker_environments(folder, sizes, own, **settings),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def wait(self) -> list[Worker]:
        """Wait until the workers that `start` has started have ended."""
        assert self._process.stdout is not None
        codes, folder = json.loads(self._process.stdout.readline()), self._folder
        return [
            Worker(code, (folder / f"worker-{rank}.log").read_text(errors="replace"), result_of(folder, rank))
            for rank, code in enumerate(codes)
        ]

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._process.stdout.close()


def write_cluster_file(folder: Path, sizes: tuple[int, ...], **settings: Any) -> Path:
    """For workers whose first batch sizes are `sizes`, on gloo where `settings` do not say otherwise."""
    workers = tuple({"batch": size, "min": 0} for size in sizes)
    settings |= late_sums.settings()
    values = {"cluster": {"workers": workers}, "comm": "gloo", "mode": "off", "batch": {"min": 1}, "seed": 3}
    file = folder / "cluster.yaml"
    file.write_text(dump_config(Config.model_validate(values | settings)))
    return file


def worker_environments(
    folder: Path, sizes: tuple[int, ...], own: tuple[dict[str, str], ...] = (), **settings: Any
) -> list[dict[str, str]]:
    """What a launcher would set for each worker of a job on gloo whose first batch sizes are `sizes`."""
    file, run_dir = write_cluster_file(folder, sizes, **settings), folder / "run"
    (run_dir / "workers").mkdir(parents=True)
    common = {
        "DYNAMIX_CONFIG": str(file),
        "DYNAMIX_RUN_DIR": str(run_dir),
        "DYNAMIX_RUN_ID": "tests",
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": str(len(sizes)),
        "DMLC_NUM_SERVER": "0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        late_sums.OVERLAP: os.environ.get(late_sums.OVERLAP, ""),
    }
    each = own or ({},) * len(sizes)
    return [common | {"DMLC_WORKER_ID": str(rank)} | each[rank] for rank in range(len(sizes))]


def result_of(folder: Path, rank: int) -> Any:
    file = folder / f"worker-{rank}.json"
    return json.loads(file.read_text()) if file.exists() else None


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(imports: str) -> None:
    """Read jobs from standard input, one JSON object a line; answer each with the list of exit codes."""
    for name in (*imports.split(","), *NEEDED_LATER):
        importlib.import_module(name)
    gc.freeze()  # else collections in the workers would visit, and so copy, all that was imported
    for line in sys.stdin:
        job = json.loads(line)
        pids = [fork_worker(rank, job) for rank in range(len(job["environment"]))]
        print(json.dumps(wait_for_all(pids, job["limit_s"])), flush=True)


def fork_worker(rank: int, job: dict[str, Any]) -> int:
    """Start one worker; returns its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        folder = Path(job["folder"])
        log = os.open(folder / f"worker-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target in (1, 2):
            os.dup2(log, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(job["environment"][rank])
        os.chdir(folder)
        late_sums.hide()
        code = as_a_script(rank, job, folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def as_a_script(rank: int, job: dict[str, Any], folder: Path) -> int:
    """Call the function, and end as Python does with a script. Returns the exit code."""

    def call() -> None:
        module, function = job["call"].split(":")
        result = getattr(importlib.import_module(module), function)(job["argument"])
        (folder / f"worker-{rank}.json").write_text(json.dumps(result))

    return ended_as_a_script(call)


def ended_as_a_script(call: Callable[[], None]) -> int:
    """What Python does around a script. Returns the exit code."""
    code = 0
    try:
        call()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        code = 1
        kind, error, trace = sys.exc_info()
        assert kind is not None and error is not None
        sys.excepthook(kind, error, trace)
    atexit._run_exitfuncs()
    return code


def wait_for_all(pids: list[int], limit_s: float) -> list[int]:
    """Exit codes, in order; whoever is late is killed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < len(pids):
        for pid in pids:
            if pid in codes:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = KILLED
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    serve(sys.argv[1])
