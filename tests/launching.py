"""Helpers of the launch tests: commands as processes, scripts that act as a worker, and checks of the cleanup."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamix_ps import own_process
from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.launch.host.forked_roles import ForkServer
from tests.forked_command import forked_command

ROOT = Path(__file__).resolve().parents[1]
# What launchers, schedulers, servers and the watch of an arbitrator import.
OTHER_ROLES = (
    *("dynamix_ps.cli.launch", "dynamix_ps.launch.job.run"),
    *("server_hooks.byteps_entry", "server_hooks.membership", "server_hooks.monitor"),
)

# The lines a worker's hook would write, without torch: STARTED, then whatever the test wants, then FINISHED.
HOOK = """
import json, os, signal, sys, time
rank = int(os.environ["DMLC_WORKER_ID"])
def say(kind, **fields):
    with open(os.path.join(os.environ["DYNAMIX_RUN_DIR"], "workers", f"worker-{rank}.jsonl"), "a") as out:
        out.write(json.dumps({"kind": kind, "rank": rank, "time_s": time.time(), **fields}) + "\\n")
def started():
    versions = {"comm_version": "none", "framework": "none"}
    say("started", comm="local", pid=os.getpid(), batch_size=64, iteration=0, **versions)
def finished():
    say("finished", iterations=3, samples=192, train_s=0.1)
"""


# Of a cluster; and what torch sets in the process of the tests at its first step: a server of forks that was started
# before has another value, and forks no worker of a job with this one.
_LEFT_OUT = ("DMLC_", "BYTEPS_", "DYNAMIX_", "TORCHINDUCTOR_CACHE_DIR")


def environment(**changes: str) -> dict[str, str]:
    """This environment without anything of a cluster, with the checkout importable. Runs end without plots."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    return {**kept, "PYTHONPATH": str(ROOT), variables.PLOTS: "no", **changes}


def begun(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """A process; its standard error and output come in one stream."""
    out = subprocess.PIPE
    return subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=stdin, stdout=out, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def run_to_end(
    argv: Sequence[str], cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 90.0
) -> subprocess.CompletedProcess[str]:
    """A process that has ended, whatever its exit code. `env`: none: as `environment()`."""
    return subprocess.run(
        argv,
        cwd=cwd,
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@functools.cache
def fork_server() -> str:
    """The socket of a server from which the jobs of this process fork their workers (`launch: {fork: true}`)."""
    folder = tempfile.TemporaryDirectory(prefix=f"forks-{os.getpid()}-")
    server = ForkServer(Path(folder.name), environment(PYTHONUNBUFFERED="1"), preloaded=OTHER_ROLES)
    atexit.register(folder.cleanup)
    atexit.register(server.close)  # called before the folder goes
    return str(server.path)


def dynamix(*arguments: str, cwd: Path, **changes: str) -> subprocess.Popen[str]:
    """Start `dynamix ...`; its standard error and output come in one stream."""
    argv = [sys.executable, "-m", "dynamix_ps", *arguments]
    if arguments[0] == "launch":
        changes.setdefault(variables.FORK_SERVER, fork_server())
        own = own_process.command("dynamix_ps.cli.main", *arguments)
        if (forked := forked_command(fork_server(), own, cwd, environment(**changes))) is not None:
            return forked
    return begun(argv, cwd, environment(**changes))


def launch_by(commands: Mapping[str, Sequence[str]], cwd: Path, file: str, *more: str) -> subprocess.Popen[str]:
    """`dynamix launch` of a cluster file with hosts, each of which is reached by the command in front of its agent.

    Its standard error and output come in one stream. `more`: a checkpoint to resume from.
    """
    argv = [sys.executable, "-m", "tests.hosts.launcher", file, json.dumps(dict(commands)), *more]
    return begun(argv, cwd, environment())


def cluster_file(
    folder: Path, extra: str = "", workers: str = "[{}]", comm: str = "local", mode: str = "'off'"
) -> Path:
    """A small cluster file; its run folders lie beside it."""
    file = folder / "cluster.yaml"
    base = json.dumps(str(folder / "runs"))
    head = f"name: t\nrun_dir: {base}\ncomm: {comm}\nmode: {mode}\ncluster: {{workers: {workers}}}\n"
    file.write_text(head + extra)
    return file


def script(folder: Path, body: str, name: str = "worker.py") -> Path:
    file = folder / name
    file.write_text(HOOK + body)
    return file


def run_id_in(output_or_folder: str) -> str:
    match = re.search(r"-\d{8}T\d{6}Z-([0-9a-f]{8})", output_or_folder)
    assert match, output_or_folder
    return match.group(1)


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s for {what}"
        time.sleep(0.02)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Output up to and including the line that contains `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came; got:\n{seen}")


def ends(process: subprocess.Popen[str], exit_code: int, seen: str = "", limit_s: float = 60.0) -> str:
    """Wait for the end of a process; returns all output, after what was `seen` of it."""
    output = seen + process.communicate(timeout=limit_s)[0]
    assert process.returncode == exit_code, output
    return output


def summary_in(folder: Path) -> dict[str, Any]:
    """Of the newest run whose cluster file is in a folder."""
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    return summary


def scratch_of(run_id: str) -> list[Path]:
    """The scratch folder of a run, while it is there."""
    return list(Path(tempfile.gettempdir()).glob(f"dynamix-{run_id}-*"))


def assert_nothing_left(run_id: str) -> None:
    """No process, segment, socket folder or control group of a run."""
    assert list(processes_of(run_id)) == []
    leftovers = [
        path
        for folder in ("/dev/shm", "/tmp", os.environ.get("TMPDIR", "/tmp"), "/sys/fs/cgroup/cpu", "/sys/fs/cgroup")
        for path in Path(folder).glob(f"*{run_id}*")
    ]
    assert leftovers == []


def kill_all(run_id: str, others: Sequence[subprocess.Popen[str]] = ()) -> None:
    """For the end of a test that failed."""
    for process in others:
        if process.poll() is None:
            process.kill()
            process.communicate()
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)


def ends_clean(launcher: subprocess.Popen[str]) -> str:
    """Wait for the end of a launcher, of whose run nothing must be left; returns its output."""
    output, _ = launcher.communicate()
    run_id = run_id_in(output)
    try:
        assert_nothing_left(run_id)
    finally:
        kill_all(run_id)
    return output


def command_line(pid: str) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def reapers_of(run_id: str) -> list[int]:
    """The processes that clean up after the launcher of this run, should it be killed."""
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if f"dynamix_ps.launch.cleanup.reaper\0{run_id}\0" in command_line(f"{pid}")
    ]
