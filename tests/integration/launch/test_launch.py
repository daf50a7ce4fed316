"""`dynamix launch` with real processes: every way a run can end, and that it leaves nothing behind.

The workers are small scripts that write the files of a hook, so no test here needs BytePS or torch.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.launch.emulation.cpu_quota import find_controller
from tests.launching import (
    assert_nothing_left,
    cluster_file,
    dynamix,
    ends,
    ends_clean,
    environment,
    kill_all,
    read_until,
    reapers_of,
    run_id_in,
    scratch_of,
    script,
    wait_for,
)
from tests.third_party_policy import write_module

pytestmark = pytest.mark.timeout(90)
WEIRD = ["a b", "quote'\"", "new\nline", "$(touch pwned)", ";touch pwned", "`touch pwned`", "*", "", "-c", "\\", "ü"]


def launch(folder: Path, body: str, *arguments: str, extra: str = "", **options: str) -> tuple[int, str, Path]:
    """(exit code, output, run folder) of a whole run."""
    file = cluster_file(folder, extra, **options)
    process = dynamix("launch", "-c", str(file), "--", "python", str(script(folder, body)), *arguments, cwd=folder)
    output = ends_clean(process)
    return process.returncode, output, (folder / "runs" / "latest").resolve()


def summary_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "summary.json").read_text())


def test_a_complete_run(tmp_path: Path) -> None:
    code, output, folder = launch(tmp_path, "started(); print('hello from', rank); finished()")
    assert code == 0, output
    assert "worker-0 | hello from 0" in output
    assert (folder / "logs" / "worker-0.log").read_text() == "hello from 0\n"
    summary = summary_of(folder)
    assert summary["exit_code"] == 0
    assert summary["iterations"] == 3
    assert "## Workers" in (folder / "summary.md").read_text()
    for name in ("config.resolved.yaml", "manifest.json", "events.jsonl", "windows.csv", "plans.csv"):
        assert (folder / name).is_file(), name


def test_arguments_reach_the_script_exactly_as_given(tmp_path: Path) -> None:
    body = f"started(); assert sys.argv[1:] == {WEIRD!r}, sys.argv; assert os.getcwd() == {str(tmp_path)!r}; finished()"
    code, output, _ = launch(tmp_path, body, *WEIRD)
    assert code == 0, output
    assert not (tmp_path / "pwned").exists()


def test_a_script_in_an_odd_place(tmp_path: Path) -> None:
    odd = tmp_path / "we ird;$(x)'\n\"dir"
    odd.mkdir()
    code, output, _ = launch(odd, "started(); finished()")
    assert code == 0, output


@pytest.mark.parametrize(
    ("body", "reason", "tail"),
    [
        ("", "worker-0 ended (exit code 0) without training", "(it printed nothing)"),
        ("sys.exit(1)", "worker-0 ended with exit code 1 before it started training", "(it printed nothing)"),
        ("started(); print('x' * 9)\nraise ValueError('boom')", "worker-0 ended with exit code 1", "ValueError: boom"),
        ("started(); os.kill(os.getpid(), 9)", "worker-0 was killed by SIGKILL at iteration 0", "printed nothing"),
        ("started(); say('failed', error='loss is NaN', iteration=7); os._exit(4)", "loss is NaN", "printed nothing"),
    ],
)
def test_a_worker_that_fails_ends_the_run_with_reason_and_last_lines(
    tmp_path: Path, body: str, reason: str, tail: str
) -> None:
    code, output, folder = launch(tmp_path, body)
    assert code == 4, output
    assert f"error: {summary_of(folder)['reason']}" in output
    assert output.index("error: ") < output.index("summary: "), "the cause comes before what takes time"
    assert reason in str(summary_of(folder)["reason"])
    assert "last lines of worker-0" in output
    assert tail in output.split("last lines of worker-0")[1]
    assert "Traceback" not in output or "boom" in output
    assert "exit code 4" in (folder / "summary.md").read_text()


def test_only_the_last_lines_are_repeated(tmp_path: Path) -> None:
    _, output, _ = launch(tmp_path, "started(); print('\\n'.join(f'line {i}.' for i in range(100))); sys.exit(7)")
    repeated = output.split("last lines of worker-0")[1]
    assert "line 80." in repeated
    assert "line 79." not in repeated


def test_who_does_not_start_in_time_is_named(tmp_path: Path) -> None:
    code, output, folder = launch(
        tmp_path, "print('loading', flush=True); time.sleep(60)", extra="timeouts: {launch_s: 2.0, job_s: 50}\n"
    )
    assert code == 5, output
    assert "worker-0 did not start training within 2 s (timeouts.launch_s); started: none" in output
    assert "  loading" in output
    assert summary_of(folder)["exit_code"] == 5


def test_the_whole_job_has_a_limit(tmp_path: Path) -> None:
    extra = "timeouts: {launch_s: 2.0, job_s: 3.0}\n"
    code, output, _ = launch(tmp_path, "started(); time.sleep(60)", extra=extra)
    assert code == 5, output
    assert "the job took longer than 3 s (timeouts.job_s)" in output


def test_what_a_worker_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    body = (
        "import subprocess; started()\n"
        "subprocess.Popen(['sleep', '300'])\n"
        "subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print('forgetful', subprocess.Popen(['sleep', '300'], env={'PATH': os.environ['PATH']}).pid)\n"
        "finished()"
    )
    code, output, _ = launch(tmp_path, body)  # also checks that nothing is left with the run's id
    assert code == 0, output
    forgetful = Path(f"/proc/{output.split('forgetful ')[1].split()[0]}")
    wait_for(lambda: not forgetful.exists(), "the process that forgot where it came from")


def test_a_worker_that_ignores_term_is_killed(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); started()\nwhile True: time.sleep(1)"
    code, output, _ = launch(tmp_path, body, extra="timeouts: {launch_s: 0.5, job_s: 1.0}\n")
    assert code == 5, output


def test_output_of_any_kind_is_survived(tmp_path: Path) -> None:
    body = "started(); sys.stdout.buffer.write(bytes(range(256)) * 300 + b'\\xe2\\x82'); sys.stdout.flush(); finished()"
    code, output, folder = launch(tmp_path, body)
    assert code == 0, output
    assert (folder / "logs" / "worker-0.log").read_bytes() == bytes(range(256)) * 300 + b"\xe2\x82"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no command for the workers"),
        (["--", "python", "no such script.py"], 2, "script not found: no such script.py"),
        (["--", "no-such-program", "x"], 2, "command not found, or not executable: 'no-such-program'"),
        (["--", "./cluster.yaml"], 2, "command not found, or not executable: './cluster.yaml'"),
        (["--policy", "magic"], 2, "Invalid value for '--policy'"),
        (["--resume", "none.pt", "--", "true"], 2, "--resume: no checkpoint file none.pt"),
        (["--run-dir", "/proc/none", "--", "true"], 3, "cannot create the run folder"),
        (["--run-dir", "cluster.yaml", "--", "true"], 3, "cannot create the run folder"),
    ],
)
def test_what_can_be_known_before_is_told_before(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    process = dynamix("launch", "-c", str(cluster_file(tmp_path)), *arguments, cwd=tmp_path)
    output = ends(process, code, limit_s=100)
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_of_the_latest_run_is_found_before_latest_becomes_the_new_run(tmp_path: Path) -> None:
    saves = "started(); open(os.environ['DYNAMIX_RUN_DIR'] + '/checkpoints/last.pt', 'w').write('x'); finished()"
    code, output, first = launch(tmp_path, saves)
    assert code == 0, output
    resumes = "started(); file = os.environ['DYNAMIX_RESUME']; print('from', file, os.path.isfile(file)); finished()"
    file, worker = str(cluster_file(tmp_path)), str(script(tmp_path, resumes))
    arguments = ("--resume", "runs/latest/checkpoints/last.pt", "--", "python", worker)
    process = dynamix("launch", "-c", file, *arguments, cwd=tmp_path)
    output = ends(process, 0, limit_s=100)
    assert f"from {first}/checkpoints/last.pt True" in output
    assert (tmp_path / "runs" / "latest").resolve() != first


def test_a_broken_cluster_file_is_exit_code_2_with_file_and_line(tmp_path: Path) -> None:
    file = cluster_file(tmp_path, "widow: 3\nseed: x\n")
    output, _ = (process := dynamix("launch", "-c", str(file), "--", "true", cwd=tmp_path)).communicate()
    assert process.returncode == 2
    assert f"error: {file}:6: widow: unknown key; did you mean 'window'?" in output
    assert f"error: {file}:7: seed: must be an integer (got 'x')" in output


def test_a_taken_port_is_exit_code_3_and_names_its_owner(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        file = tmp_path / "c.yaml"
        file.write_text(f"name: t\nrun_dir: {tmp_path}/runs\ncomm: local\ncluster: {{port: {port}, workers: [{{}}]}}\n")
        process = dynamix("launch", "-c", str(file), "--", "true", cwd=tmp_path)
        output = ends(process, 3, limit_s=100)
    assert f"port {port} on 127.0.0.1 is in use by" in output
    assert f"(pid {os.getpid()})" in output
    assert summary_of(tmp_path / "runs" / "latest")["exit_code"] == 3
    assert_nothing_left(run_id_in(output))


def test_a_dry_run_prints_lines_a_shell_can_run_and_starts_nothing(tmp_path: Path) -> None:
    arguments = ["python", "-c", "import sys; print(sys.argv[1:])", *WEIRD]
    file = cluster_file(tmp_path, mode="adapt", workers="[{}, {}]", comm="byteps")
    process = dynamix("launch", "-c", str(file), "--dry-run", "--", *arguments, cwd=tmp_path)
    output = ends(process, 0, limit_s=100)
    assert not (tmp_path / "runs").exists()
    last = output.partition("# worker-1\n")[2]
    assert output.count("DMLC_ROLE=") == 4
    assert shlex.split(last)[-len(arguments) :] == arguments
    assert "DMLC_WORKER_ID=1" in last
    # The line of a worker does what it says.
    line = ["/bin/sh", "-c", last]
    shown = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == repr(WEIRD), shown.stderr


class Running:
    """A run in the middle of training, to be disturbed."""

    def __init__(self, folder: Path, body: str, **options: str) -> None:
        file = cluster_file(folder, **options)
        self.process = dynamix("launch", "-c", str(file), "--", "python", str(script(folder, body)), cwd=folder)
        self.output = read_until(self.process, "in training")
        self.run_id = run_id_in(self.output)
        self.folder = (folder / "runs" / "latest").resolve()

    def end(self) -> str:
        rest, _ = self.process.communicate()
        return self.output + rest


QUOTA = find_controller().usable
TRAINING = "started(); print('in training', flush=True)\n"
FOR_EVER = TRAINING + "while True: time.sleep(1)"
STUBBORN = "signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\n" + FOR_EVER


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_in_order_with_a_summary(tmp_path: Path, number: signal.Signals) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), os._exit(0)))\n" + FOR_EVER
    run = Running(tmp_path, body)
    try:
        run.process.send_signal(number)
        output = run.end()
    finally:
        kill_all(run.run_id, [run.process])
    assert run.process.returncode == 130, output
    assert "worker-0 | saved" in output
    assert f"error: interrupted by {number.name}" in output
    assert f"for plots, run: dynamix report {run.folder}" in output
    assert summary_of(run.folder)["reason"] == f"interrupted by {number.name}"
    assert_nothing_left(run.run_id)


def test_the_second_ctrl_c_kills(tmp_path: Path) -> None:
    run = Running(tmp_path, STUBBORN)
    try:
        run.process.send_signal(signal.SIGINT)
        run.output += read_until(run.process, "worker-0 | no")  # it got TERM and stays
        run.process.send_signal(signal.SIGINT)
        output = run.end()
    finally:
        kill_all(run.run_id, [run.process])
    assert run.process.returncode == 130, output
    assert_nothing_left(run.run_id)


@pytest.mark.parametrize("mode", ["'off'", "adapt"])
def test_a_launcher_killed_with_9_leaves_nothing(tmp_path: Path, mode: str) -> None:
    body = (
        "import subprocess\nopen(f'/dev/shm/{os.environ[\"BYTEPS_SHM_PREFIX\"]}x', 'w').close()\n"
        "subprocess.Popen(['sleep', '300'], start_new_session=True)\n" + STUBBORN
    )
    run = Running(tmp_path, body, mode=mode, workers="[{speed: 0.5}]", extra="emulation: cgroup\n" * QUOTA)
    try:
        assert len(list(processes_of(run.run_id))) >= 2
        run.process.kill()
        run.process.communicate()
        wait_for(lambda: not list(processes_of(run.run_id)), "all processes of the run to end")
        wait_for(lambda: not scratch_of(run.run_id), "the socket folder to go")
    finally:
        kill_all(run.run_id, [run.process])
    assert_nothing_left(run.run_id)


@pytest.mark.alone  # any other run would remove it first
def test_what_a_run_left_whose_reaper_died_too_is_removed_by_the_next_run(tmp_path: Path) -> None:
    run = Running(tmp_path, FOR_EVER)
    worker = next(iter(processes_of(run.run_id)))
    environ = dict(line.partition("=")[::2] for line in Path(f"/proc/{worker}/environ").read_text().split("\0"))
    segment = Path("/dev/shm", f"{environ['BYTEPS_SHM_PREFIX']}x")
    try:
        segment.touch()
        reapers = reapers_of(run.run_id)
        assert len(reapers) == 1
        os.kill(reapers[0], signal.SIGKILL)
        run.process.kill()
        run.process.communicate()
        wait_for(lambda: not list(processes_of(run.run_id)), "the worker to end with the launcher")
        assert segment.exists()
        code, output, _ = launch(tmp_path, "started(); finished()")
        assert code == 0, output
        assert_nothing_left(run.run_id)
    finally:
        kill_all(run.run_id, [run.process])
        segment.unlink(missing_ok=True)


def test_a_run_that_goes_on_is_not_touched_by_the_next_run(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    run = Running(first, FOR_EVER)
    try:
        code, output, _ = launch(second, "started(); finished()")
        assert code == 0, output
        assert len(list(processes_of(run.run_id))) == 1
        assert len(scratch_of(run.run_id)) == 1
        run.process.send_signal(signal.SIGINT)
        run.end()
    finally:
        kill_all(run.run_id, [run.process])
    assert_nothing_left(run.run_id)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make namespaces")
def test_a_run_is_not_touched_by_one_in_another_pid_namespace_with_the_same_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    run = Running(first, FOR_EVER)
    try:
        worker = next(iter(processes_of(run.run_id)))
        environ = dict(line.partition("=")[::2] for line in Path(f"/proc/{worker}/environ").read_text().split("\0"))
        segment = Path("/dev/shm", f"{environ['BYTEPS_SHM_PREFIX']}x")
        segment.touch()
        job = f"{sys.executable} -m dynamix_ps.cli.main launch -c {cluster_file(second)} -- python"
        command = [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            *job.split(),
            str(script(second, "started(); finished()")),
        ]
        subprocess.run(command, cwd=second, env=environment(), check=True, timeout=60)
        assert segment.exists()
        assert len(scratch_of(run.run_id)) == 1
        run.process.send_signal(signal.SIGINT)
        run.end()
    finally:
        kill_all(run.run_id, [run.process])
    assert_nothing_left(run.run_id)


def test_a_terminal_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    file = cluster_file(tmp_path)
    body = TRAINING + "for i in range(2000): print('x' * 500)\nfinished()"
    process = dynamix("launch", "-c", str(file), "--", "python", str(script(tmp_path, body)), cwd=tmp_path)
    output = read_until(process, "in training")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert summary_of((tmp_path / "runs" / "latest").resolve())["reason"] == "all workers finished"
    assert_nothing_left(run_id_in(output))


@pytest.mark.skipif(not find_controller().usable, reason="control groups are not permitted here")
def test_a_quota_binds_the_worker_and_is_gone_afterwards(tmp_path: Path) -> None:
    body = (
        "started()\n"
        "groups = [line for line in open('/proc/self/cgroup') if 'dynamix-' in line]\n"
        "assert groups, open('/proc/self/cgroup').read()\n"
        "def stolen():\n"
        "    wall, cpu = time.monotonic(), time.process_time()\n"
        "    while time.monotonic() < wall + 0.2: pass\n"
        "    return (time.process_time() - cpu) / 0.2 < 0.6\n"
        "deadline = time.monotonic() + 30\n"
        "while not stolen(): assert time.monotonic() < deadline\n"
        "finished()"
    )
    code, output, folder = launch(tmp_path, body, workers="[{speed: 0.2}]", extra="emulation: cgroup\n")
    assert code == 0, output
    assert "CPU quota: 0.20 cores" in str(summary_of(folder)["heterogeneity"])


def test_the_hook_is_told_how_much_to_slow_down(tmp_path: Path) -> None:
    body = "started(); assert os.environ['DYNAMIX_SLOWDOWN'] == '4'; finished()"
    code, output, folder = launch(tmp_path, body, workers="[{speed: 0.25}]", extra="emulation: hook\n")
    assert code == 0, output
    assert summary_of(folder)["heterogeneity"] == "slow-down in the hook: 4x compute time"


def test_a_policy_of_somebody_else_decides_in_a_real_run(tmp_path: Path) -> None:
    name = write_module(tmp_path)
    policy = f"policy: {{name: '{name}', options: {{step: 4}}}}\nwindow: 5\n"
    file = cluster_file(tmp_path, policy, mode="adapt")
    command = ("python", "-m", "benchmarks.workloads.train", "--data", "digits", "--model", "mlp", "--epochs", "4")
    process = dynamix("launch", "-c", str(file), "--", *command, cwd=tmp_path)
    output = ends_clean(process)
    assert process.returncode == 0, output
    with (tmp_path / "runs" / "latest" / "plans.csv").open() as plans:
        applied = [row["batch_0"] for row in csv.DictReader(plans) if row["status"] == "applied"]
    assert "68" in applied, output


def test_a_policy_that_is_not_there_ends_the_launch_before_anything_starts(tmp_path: Path) -> None:
    file = cluster_file(tmp_path, "policy: {name: 'absent_policy:Grow'}\n", mode="adapt")
    process = dynamix("launch", "-c", str(file), "--", "python", "-c", "pass", cwd=tmp_path)
    output, _ = process.communicate()
    assert process.returncode == 2
    assert f"{file}:6: policy.name: there is no module absent_policy" in output
    assert not (tmp_path / "runs").exists()
