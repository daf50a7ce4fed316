"""A worker that is forked is what a new process would be."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps import own_process
from dynamix_ps.launch.host.forked_roles import ForkedRoles, ForkServer, existing_server
from dynamix_ps.launch.host.process import RoleProcess, state_of
from dynamix_ps.launch.host.role_group import RoleGroup
from dynamix_ps.launch.messages.agent_messages import FromAgent, RoleEnded, RunEvent, Started
from dynamix_ps.launch.roles.plan import RoleSpec
from tests.launching import environment, wait_for

pytestmark = pytest.mark.timeout(120)

ENVIRONMENT = environment(PYTHONUNBUFFERED="1", BYTEPS_NUMA_ON="0", GRPC_ENABLE_FORK_SUPPORT="0")
FACTS = """\
import json, os, resource, signal, sys, threading, __main__
def shown(name):
    return [part for part in open(f"/proc/self/{name}").read().split("\\0") if part]
shared = ("DYNAMIX_TEST",)
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__, "file": __file__,
    "main": sorted(name for name in vars(__main__) if name.startswith("__")),
    "spec": getattr(__spec__, "name", None), "cached": str(__main__.__cached__), "loader": type(__loader__).__name__,
    "environ": dict(os.environ), "shown": sorted(shown("environ")), "command": shown("cmdline")[-2:],
    "folder": os.getcwd(), "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "open": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    "input": os.readlink("/proc/self/fd/0"),
    "handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "open files": resource.getrlimit(resource.RLIMIT_NOFILE), "threads": threading.active_count(),
    "thread": threading.current_thread().name, "main thread": threading.current_thread() is threading.main_thread(),
    "hook": sys.excepthook is sys.__excepthook__, "future": "annotations" in globals(),
}
import torch
facts["threads of torch"] = torch.get_num_threads()
facts["cuda"] = [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()]
json.dump(facts, open(sys.argv[1], "w"))
"""


def spec(*command: str, **changes: str) -> RoleSpec:
    argv = own_process.command("dynamix_ps.cli.bpslaunch")
    variables = {
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": "0",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "1",
        "DYNAMIX_RUN_ID": "0f0f0f0f",
        **changes,
    }
    return RoleSpec("worker-0", "worker", (*argv, *command), variables, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    one = ForkServer(tmp_path_factory.mktemp("server"), ENVIRONMENT)
    yield one
    one.close()


@pytest.fixture
def forked(server: ForkServer) -> Iterator[ForkedRoles]:
    with_server = ForkedRoles(server.path)
    wait_for(lambda: with_server.is_ready, "the server")
    yield with_server
    with_server.close()


def ended(role: RoleSpec, folder: Path, forked: ForkedRoles | None = None) -> tuple[int, str]:
    """Exit code and output of a role that starts in this folder."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        process = RoleProcess(role, ENVIRONMENT | dict(role.env), forked=forked)
    finally:
        os.chdir(here)
    os.set_blocking(process.pipe.fileno(), True)
    output = process.pipe.read().decode()
    process.pipe.close()
    wait_for(process.poll, "the end of the role")
    assert process.exit_code is not None
    return process.exit_code, output


def written(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def test_it_sees_what_a_new_process_sees(forked: ForkedRoles, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    for way in (None, forked):
        script = written(tmp_path, FACTS)
        code, output = ended(spec("python", script, "facts.json"), tmp_path, way)
        assert code == 0, output
        seen.append(json.loads((tmp_path / "facts.json").read_text()))
    new, forked_one = seen
    assert forked_one.keys() == new.keys()
    for name, fact in new.items():
        assert forked_one[name] == fact, name


ENDS = {
    "code": ("import sys; sys.exit(7)", 7),
    "message": ("import sys; sys.exit('no')", 1),
    "error": ("def f():\n    raise ValueError('of a script')\nf()", 1),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "syntax": ("x = (", 1),
    "thread": (
        """\
import atexit, threading, time
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
""",
        0,
    ),
    "spawn": (
        """\
import multiprocessing
def put(queue):
    queue.put(5)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
""",
        0,
    ),
    "pickle": (
        """\
import dataclasses, pickle
@dataclasses.dataclass
class One:
    x: int
print(pickle.loads(pickle.dumps(One(3))))
""",
        0,
    ),
}


@pytest.mark.parametrize(("text", "code"), ENDS.values(), ids=ENDS)
def test_it_ends_as_a_new_process_ends(forked: ForkedRoles, tmp_path: Path, text: str, code: int) -> None:
    script = written(tmp_path, text)
    found = ended(spec("python", script), tmp_path, forked)
    assert found == ended(spec("python", script), tmp_path)
    assert found[0] == code


def test_a_module_runs_as_by_python_m(forked: ForkedRoles, tmp_path: Path) -> None:
    written(tmp_path, FACTS.replace("str(__main__.__cached__)", "''"), "facts_of.py")
    seen = []
    for way in (None, forked):
        code, output = ended(spec("python", "-m", "facts_of", "facts.json"), tmp_path, way)
        assert code == 0, output
        facts = json.loads((tmp_path / "facts.json").read_text())
        seen.append({name: facts[name] for name in ("argv", "path", "name", "file", "spec", "environ")})
    assert seen[0] == seen[1]


def test_two_workers_draw_different_numbers(forked: ForkedRoles, tmp_path: Path) -> None:
    script = written(
        tmp_path, "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.initial_seed())"
    )
    drawn = [ended(spec("python", script), tmp_path, forked)[1].split() for _ in range(2)]
    assert len({*drawn[0], *drawn[1]}) == 6


@pytest.mark.parametrize(
    ("files", "command", "is_forked"),
    [
        ({}, ("python", "train.py"), True),
        ({}, ("python", "-u", "train.py"), True),
        ({}, ("python", "-X", "dev", "train.py"), False),
        ({}, ("/bin/sh", "-c", f"exec {sys.executable} train.py"), False),
        ({"queue.py": "Queue = None"}, ("python", "train.py"), False),
        ({"helper.py": "# mxnet"}, ("python", "train.py"), True),
    ],
)
def test_a_command_that_needs_a_python_of_its_own_has_one(
    forked: ForkedRoles, tmp_path: Path, files: dict[str, str], command: tuple[str, ...], is_forked: bool
) -> None:
    for name, text in files.items():
        written(tmp_path, text, name)
    written(tmp_path, "import sys; print('torch' in sys.modules)")
    assert ended(spec(*command), tmp_path, forked) == (0, f"{is_forked}\n")


def test_a_script_with_mxnet_has_a_python_of_its_own(forked: ForkedRoles, tmp_path: Path) -> None:
    script = written(tmp_path, "import sys; print('torch' in sys.modules)  # and then mxnet")
    assert ended(spec("python", script), tmp_path, forked) == (0, "False\n")


@pytest.mark.parametrize(
    "changes", [{"OMP_NUM_THREADS": "3"}, {"PYTHONHASHSEED": "1"}, {"DYNAMIX_TEST": "x" * 100_000}]
)
def test_one_that_would_have_imported_otherwise_is_a_new_process(
    forked: ForkedRoles, tmp_path: Path, changes: dict[str, str]
) -> None:
    script = written(tmp_path, "import sys; print('torch' in sys.modules)")
    assert ended(spec("python", script, **changes), tmp_path, forked) == (0, "False\n")


def test_a_wrong_variable_is_told_as_by_a_new_process(forked: ForkedRoles, tmp_path: Path) -> None:
    role = spec("python", "train.py", DMLC_NUM_WORKER="none")
    assert ended(role, tmp_path, forked) == ended(role, tmp_path)


@pytest.mark.parametrize("arguments", [["--help"], ["launch"], ["report", "--nonsense"]])
def test_a_program_of_this_project_is_forked_too(forked: ForkedRoles, tmp_path: Path, arguments: list[str]) -> None:
    written(tmp_path, "raise ValueError('of the working folder')", "click.py")
    role = RoleSpec("server-0", "server", own_process.command("dynamix_ps.cli.main", *arguments), {})
    new, forked_one = ended(role, tmp_path), ended(role, tmp_path, forked)
    assert forked_one == new and new[1]


def sleeping(forked: ForkedRoles, folder: Path) -> RoleProcess:
    script = written(folder, "import time; print('there'); time.sleep(600)")
    process = RoleProcess(spec("python", str(folder / script)), ENVIRONMENT | dict(spec().env), forked=forked)
    os.set_blocking(process.pipe.fileno(), True)
    assert process.pipe.read(5) == b"there"
    process.pipe.close()
    return process


def test_signals_to_all_processes_of_a_host_are_for_the_workers(
    server: ForkServer, forked: ForkedRoles, tmp_path: Path
) -> None:
    first = sleeping(forked, tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(int(server.path.name.rpartition("-")[2]), number)
    second = sleeping(forked, tmp_path)
    assert not first.poll()
    for process in (first, second):
        process.signal(signal.SIGTERM)
        wait_for(process.poll, "its end")
        assert process.exit_code == -signal.SIGTERM


def test_it_ends_with_who_has_asked_for_it(server: ForkServer, tmp_path: Path) -> None:
    forked = ForkedRoles(server.path)
    process = sleeping(forked, tmp_path)
    forked.close()
    wait_for(lambda: not state_of(process.pid), "the end of the worker")


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_ends_with_the_server(tmp_path: Path, how: str) -> None:
    server = ForkServer(tmp_path, ENVIRONMENT)
    forked = ForkedRoles(server.path)
    wait_for(lambda: forked.is_ready, "the server")
    process = sleeping(forked, tmp_path)
    if how == "killed":
        os.kill(int(server.path.name.rpartition("-")[2]), signal.SIGKILL)
    else:
        server.close()
    wait_for(lambda: state_of(process.pid) in ("", "Z"), "the end of the worker")
    wait_for(process.poll, "the news of it")
    assert process.exit_code == -signal.SIGKILL
    server.close()
    forked.close()


class Group:
    """The roles of a host whose workers are forked by whoever listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.told: list[FromAgent] = []
        self.roles = RoleGroup(selectors.DefaultSelector(), self.told.append, ENVIRONMENT)
        self.forked = ForkedRoles(path)
        self.roles.fork_by(self.forked)

    def close(self) -> None:
        self.roles.end(0.0)
        self.forked.close()


def test_a_worker_that_waits_for_the_server_can_be_ended(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as never_ready:
        never_ready.bind(str(tmp_path / "socket"))
        never_ready.listen()
        group = Group(tmp_path / "socket")
        group.roles.start(spec("true"))
        group.roles.tick()
        assert group.told == [] and group.roles.running == ["worker-0"]
        group.roles.signal(["worker-0"], signal.SIGTERM)
        assert [type(one) for one in group.told if not hasattr(one, "data")] == [Started, RoleEnded]
        assert group.roles.running == []
        group.close()


def test_what_needs_no_torch_does_not_wait_for_the_server(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as never_ready:
        never_ready.bind(str(tmp_path / "socket"))
        never_ready.listen()
        group = Group(tmp_path / "socket")
        group.roles.start(RoleSpec("server-0", "server", (sys.executable, "-c", "pass"), {}))
        assert group.told == [Started("server-0")]
        group.close()


def test_without_the_server_workers_are_new_processes_and_it_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        group = Group(tmp_path / "socket")
        group.roles.start(spec("true"))
    group.roles.tick()
    told = [one for one in group.told if isinstance(one, RunEvent)]
    assert [(one.event, one.fields["what"]) for one in told] == [("degraded", "forks")]
    assert group.roles.running == ["worker-0"]
    group.close()


def test_a_server_of_other_limits_is_not_used(server: ForkServer) -> None:
    code = (
        "import os, sys\nfrom dynamix_ps.launch.host.forked_roles import existing_server\n"
        "os.umask(0o027)\nprint(existing_server(sys.argv[1]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(server.path)], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "None\n"
    same = existing_server(str(server.path))
    assert same is not None
    same.close()
    assert existing_server("/nowhere") is None
