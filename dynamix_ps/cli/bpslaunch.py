"""`dynamix-bpslaunch [CMD...]`: a drop-in for bpslaunch. Same variables, any role, with our hooks.

A scheduler or server needs no command. A worker runs CMD exactly as given, without a shell; `python` means the
interpreter of this installation. What differs from bpslaunch: every missing or wrong variable is an error (exit 2),
NUMA binding is off unless BYTEPS_NUMA_ON=1, several workers may share one machine, and nothing stays in /dev/shm.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dynamix_ps import own_process
from dynamix_ps.config import variables
from dynamix_ps.config.role_environment import RoleSettings, read_role
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import MEANINGS, exit_code_of
from dynamix_ps.launch.cleanup.holdings import Holdings, make_scratch, new_scratch_path, new_shm_prefix
from dynamix_ps.launch.cleanup.reaper import start_reaper
from dynamix_ps.launch.cleanup.release import release_stale
from dynamix_ps.launch.host.affinity import core_sets, numa_nodes
from dynamix_ps.launch.host.local_group import run_local_group
from dynamix_ps.rpc.fork import SWITCH as GRPC_FORK_SWITCH

_USAGE = "usage: dynamix-bpslaunch CMD [ARG...]   (the role comes from DMLC_ROLE; server and scheduler take no CMD)"


def main() -> int:
    """Entry point; does not return where the role replaces this process."""
    return exit_code_of(lambda: run(sys.argv[1:]))


def run(argv: Sequence[str], become: Callable[[list[str]], object] | None = None) -> int:
    """`become` gets the command of a role that is one process; none: it replaces this process."""
    if list(argv) in (["-h"], ["--help"]):
        codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in MEANINGS.items())
        print(f"{_USAGE}\n\n{__doc__}\nExit codes, unless CMD ends with one of its own:\n{codes}")
        return 0
    settings = read_role(os.environ)
    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    _set_defaults()
    become = become or _replace_process
    if settings.role == "worker":
        return _worker(settings, _resolved(command), become)
    if not settings.distributed:
        print(f"one worker without BYTEPS_FORCE_DISTRIBUTED=1 needs no {settings.role}: nothing to do")
        return 0
    become(_debugged(list(own_process.command(f"server_hooks.{settings.role}"))))
    return 0


def _set_defaults() -> None:
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("BYTEPS_NUMA_ON", "0")
    os.environ.setdefault(GRPC_FORK_SWITCH, "0")  # before the script can import gRPC
    bin_dir, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != bin_dir:
        os.environ["PATH"] = os.pathsep.join((bin_dir, path))


def _resolved(command: list[str]) -> list[str]:
    if not command:
        raise UsageError(f"a worker needs a command\n{_USAGE}")
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    if shutil.which(command[0]) is None:
        raise UsageError(f"command not found, or not executable: {command[0]!r} (looked in {os.environ['PATH']})")
    return command


def _worker(settings: RoleSettings, command: list[str], replace: Callable[[list[str]], object]) -> int:
    if not variables.get(variables.RUN_ID):
        _isolate(settings)
    size = settings.local_size
    bind = os.environ["BYTEPS_NUMA_ON"] == "1"
    cores = core_sets(os.environ, size, numa_nodes()) if bind else [set[int]()] * size

    def become(local_rank: int) -> NoReturn:
        _prepare(local_rank, size, cores[local_rank])
        _replace_process(_debugged(command))

    if size == 1:
        _prepare(0, 1, cores[0])
        replace(_debugged(command))
        return 0
    return run_local_group(size, lambda local_rank: exit_code_of(lambda: become(local_rank)))


def _isolate(settings: RoleSettings) -> None:
    """Give this worker its own sockets and shared-memory names, and a reaper that removes them after its end."""
    release_stale()
    name = f"w{settings.worker_id}"
    scratch = make_scratch(new_scratch_path(name), sockets=1)
    holdings = Holdings(
        run_id="",
        shm_prefix=os.environ.setdefault(variables.SHM_PREFIX, new_shm_prefix(name)),
        scratch=str(scratch),
    )
    os.set_inheritable(holdings.save(), True)  # the command that this process becomes keeps the record locked
    os.environ.setdefault("BYTEPS_SOCKET_PATH", str(scratch / "w0"))
    os.environ.setdefault(variables.PLACE, str(scratch / "w0"))
    start_reaper(holdings, survives_exec=True)


def _prepare(local_rank: int, local_size: int, cores: set[int]) -> None:
    """What one process of a worker needs before it becomes the command."""
    os.environ["BYTEPS_LOCAL_RANK"] = str(local_rank)
    os.environ["BYTEPS_LOCAL_SIZE"] = str(local_size)
    if os.environ.get("BYTEPS_TRACE_ON") == "1":
        Path(os.environ.get("BYTEPS_TRACE_DIR", "."), str(local_rank)).mkdir(parents=True, exist_ok=True)
    if cores:
        os.sched_setaffinity(0, cores)


def _debugged(command: list[str]) -> list[str]:
    gdb = ["gdb", "-ex", "run", "-ex", "bt", "-batch", "--args"]
    return [*gdb, *command] if os.environ.get("BYTEPS_ENABLE_GDB", "0") == "1" else command


def _replace_process(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(f"cannot run {command[0]!r}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
