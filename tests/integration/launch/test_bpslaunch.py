"""dynamix-bpslaunch as a process: exit codes, arguments, isolation, several local processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import environment, wait_for

pytestmark = pytest.mark.timeout(60)

WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_WORKER_ID": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "39999",
}
PRINT = "import os, sys; print([os.environ.get(n) for n in sys.argv[1].split()])"


def bpslaunch(*arguments: str, drop: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**environment(), **WORKER, **variables}
    environ.pop(drop, None)
    command = [sys.executable, "-m", "dynamix_ps.cli.bpslaunch", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_passes_through(code: int) -> None:
    assert bpslaunch("python", "-c", f"raise SystemExit({code})").returncode == code


def test_death_by_signal_passes_through() -> None:
    assert bpslaunch("python", "-c", "import os; os.kill(os.getpid(), 9)").returncode == -9


def test_arguments_meet_no_shell(tmp_path: Path) -> None:
    weird = ["a b", "$(touch x)", ";ls", "'\"", "new\nline", "", "*"]
    done = bpslaunch("--", "python", "-c", "import sys; print(sys.argv[1:])", *weird)
    assert done.stdout.strip() == repr(weird), done.stderr


def test_python_is_this_interpreter_and_first_on_the_path() -> None:
    done = bpslaunch("python", "-c", "import shutil, sys; print(sys.executable, shutil.which('python'))", PATH="/bin")
    interpreter, found = done.stdout.split()
    assert interpreter == sys.executable
    assert os.path.dirname(found) == os.path.dirname(sys.executable)


@pytest.mark.parametrize("name", sorted(WORKER))
def test_a_missing_variable_is_never_exit_code_0(name: str) -> None:
    done = bpslaunch("python", "-c", "print('started')", drop=name)
    assert done.returncode == 2
    assert f"error: {name} is not set; expected" in done.stderr
    assert "started" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a worker needs a command"),
        (("no-such-program",), "command not found"),
        (("/etc/passwd",), "not executable"),
    ],
)
def test_a_command_that_cannot_be_run_is_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = bpslaunch(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_defaults_and_what_the_user_has_set() -> None:
    names = "BYTEPS_NUMA_ON BYTEPS_LOCAL_RANK BYTEPS_LOCAL_SIZE PYTHONUNBUFFERED"
    assert bpslaunch("python", "-c", PRINT, names).stdout.strip() == "['0', '0', '1', '1']"
    done = bpslaunch(
        "python", "-c", PRINT, "BYTEPS_NUMA_ON BYTEPS_SOCKET_PATH", BYTEPS_NUMA_ON="1", BYTEPS_SOCKET_PATH="/x"
    )
    assert done.stdout.strip() == "['1', '/x']"


def test_cores_are_bound_when_asked_for() -> None:
    core = min(os.sched_getaffinity(0))
    done = bpslaunch(
        "python", "-c", "import os; print(os.sched_getaffinity(0))",
        BYTEPS_NUMA_ON="1", BYTEPS_VISIBLE_CPU_CORES=str(core),
    )  # fmt: skip
    assert done.stdout.strip() == f"{{{core}}}", done.stderr


def test_one_process_per_local_gpu() -> None:
    show = "import os; os.write(1, '{BYTEPS_LOCAL_RANK} {BYTEPS_LOCAL_SIZE}\\n'.format(**os.environ).encode())"
    done = bpslaunch("python", "-c", show, NVIDIA_VISIBLE_DEVICES="0,1,2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 3", "1 3", "2 3"]


def test_local_processes_end_together_with_the_code_of_the_first_failure() -> None:
    body = "import os, sys, time\nif os.environ['BYTEPS_LOCAL_RANK'] == '1': sys.exit(9)\ntime.sleep(300)"
    assert bpslaunch("python", "-c", body, NVIDIA_VISIBLE_DEVICES="0,1,2").returncode == 9
    body = body.replace("sys.exit(9)", "os.kill(os.getpid(), 11)")
    assert bpslaunch("python", "-c", body, NVIDIA_VISIBLE_DEVICES="0,1").returncode == 128 + 11


def test_a_signal_reaches_all_local_processes() -> None:
    body = "import os, time; os.write(1, b'up\\n'); time.sleep(300)"
    environ = {**environment(), **WORKER, "NVIDIA_VISIBLE_DEVICES": "0,1"}
    command = [sys.executable, "-m", "dynamix_ps.cli.bpslaunch", "python", "-c", body]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + 15
    finally:
        process.kill()
        process.communicate()


def test_workers_of_one_host_are_isolated_and_leave_nothing_after_kill_9() -> None:
    """Without our launcher: no run id, so dynamix-bpslaunch itself keeps the workers apart and cleans up."""
    body = (
        "import os, sys, time\n"
        "prefix, path = os.environ['BYTEPS_SHM_PREFIX'], os.environ['BYTEPS_SOCKET_PATH']\n"
        "assert os.path.isdir(path)\n"
        "open('/dev/shm/' + prefix + 'x', 'w').close()\n"
        "print(prefix, path, flush=True)\n"
        "time.sleep(300)"
    )
    processes = []
    for worker in "01":
        environ = {**environment(), **WORKER, "DMLC_WORKER_ID": worker}
        command = [sys.executable, "-m", "dynamix_ps.cli.bpslaunch", "python", "-c", body]
        processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    shown = [process.stdout.readline().split() for process in processes if process.stdout]
    for process in processes:
        process.kill()
        process.communicate()
    (prefix, path), (other_prefix, other_path) = shown
    assert prefix != other_prefix
    assert path != other_path
    for name, folder in shown:
        wait_for(lambda name=name: not list(Path("/dev/shm").glob(f"{name}*")), "the segments to go")
        wait_for(lambda folder=folder: not Path(folder).parent.exists(), "the socket folder to go")


def test_the_command_does_not_see_the_reaper_as_its_child() -> None:
    done = bpslaunch("python", "-c", "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')")
    assert done.stdout.strip() == "none", done.stderr


def test_one_worker_that_is_not_forced_needs_no_server() -> None:
    done = bpslaunch(DMLC_ROLE="server", DMLC_NUM_WORKER="1")
    assert done.returncode == 0
    assert "nothing to do" in done.stdout


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_without_byteps_a_server_says_how_to_get_it(tmp_path: Path, role: str) -> None:
    (tmp_path / "byteps").mkdir()
    (tmp_path / "byteps" / "__init__.py").write_text("raise ImportError('no such thing here')")
    paths = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = bpslaunch(DMLC_ROLE=role, PYTHONPATH=paths)
    assert done.returncode == 3
    assert "no such thing here" in done.stderr
    assert "dynamix build-byteps" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_file_without_the_rest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("cluster: {workers: [{}]}\n")
    done = bpslaunch(DMLC_ROLE="scheduler", DYNAMIX_CONFIG=str(file))
    assert done.returncode == 2
    assert "DYNAMIX_RUN_DIR, DYNAMIX_RUN_ID, DYNAMIX_ARBITRATOR, DYNAMIX_TOKEN" in done.stderr
    file.write_text("cluster: 3\n")
    done = bpslaunch(DMLC_ROLE="scheduler", DYNAMIX_CONFIG=str(file))
    assert done.returncode == 2
    assert f"{file}:1: cluster: must be a mapping" in done.stderr
