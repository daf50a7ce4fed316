"""Disk, terminal and limits of the machine fail under a run; other_rows.py has the rows."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.testbed.small_disk import DiskRefused, fill, small_disk
from tests.faults.job import job, output_of
from tests.faults.other_rows import SURROUNDINGS
from tests.faults.table import LIMIT_S, Outcome
from tests.forked_cluster import ForkedCluster
from tests.launching import ROOT, assert_nothing_left, cluster_file, dynamix, run_id_in, run_to_end, script, wait_for
from worker_hooks.saved.checkpoint import load_checkpoint

pytestmark = pytest.mark.timeout(120)

TEXT = "héllo → 批\n".encode() + b"latin1 \xe9\xff\x80 bytes\n"
PRINTS = f"started(); sys.stdout.buffer.write({TEXT!r}); sys.stdout.flush(); finished()"


def in_terminal_of(encoding: str, shown: str) -> Callable[[Path, Outcome], None]:
    def run(folder: Path, outcome: Outcome) -> None:
        with job(folder, PRINTS, PYTHONIOENCODING=encoding) as running:
            running.ends_with(outcome)
            assert f"worker-0 | {shown}" in running.output
            assert (running.run_folder / "logs" / "worker-0.log").read_bytes() == TEXT

    return run


def in_shell(line: str) -> Callable[[Path, Outcome], None]:
    """`line` has `LAUNCH` where the command stands; what it prints is not looked at, the run folder is."""

    def run(folder: Path, outcome: Outcome) -> None:
        file = cluster_file(folder)
        worker = script(folder, "started()\nfor i in range(2000): print('x' * 100)\nfinished()")
        launch = f"{sys.executable} -m dynamix_ps.cli.main launch -c {file} -- python {worker}"
        command = ["bash", "-c", line.replace("LAUNCH", launch)]
        done = run_to_end(command, folder, timeout_s=LIMIT_S)
        assert done.returncode == outcome.exit_code, done.stdout + done.stderr
        run_folder = (folder / "runs" / "latest").resolve()
        assert re.search(outcome.says, (run_folder / "summary.md").read_text())
        assert_nothing_left(run_id_in(str(run_folder)))

    return run


FLOOD = b"a line of some output\n" * 200_000 + b"x" * 10_000_000 + b"\nthe last line\n"


def output_flood(folder: Path, outcome: Outcome) -> None:
    body = """
line = b"a line of some output\\n"
started()
for _ in range(200_000):
    os.write(1, line)
for _ in range(10):
    os.write(2, b"x" * 1_000_000)
os.write(1, b"\\nthe last line\\n")
finished()
"""
    with job(folder, body) as running:
        running.ends_with(outcome)
        for name in ("worker-0", "worker-1"):
            assert (running.run_folder / "logs" / f"{name}.log").read_bytes() == FLOOD
            assert re.search(rf"{name} +\| \.\.\. [\d,]+ more lines in {name}\.log\n", running.output)
            assert re.search(rf"{name} +\| the last line\n", running.output)
        assert running.output.count("a line of some output") < 20_000


@contextmanager
def _disk(place: Path, size_bytes: int) -> Iterator[None]:
    place.mkdir()
    try:
        with small_disk(place, size_bytes):
            yield
    except DiskRefused as error:
        pytest.skip(f"no disk can be mounted here: {error}")


def disk_full_in_training(folder: Path, outcome: Outcome) -> None:
    body = """
started()
print('in place', flush=True)
wait_for('finish')
print('x\\n' * 9999)
print('more', flush=True)
wait_for('../room')
finished()
"""
    with _disk(folder / "runs", 1 << 20), job(folder, body) as running:
        running.wait_until_said("in place", times=2)
        filler = fill(folder / "runs")
        running.let_workers_finish()
        running.wait_until_said("more", times=2)
        filler.unlink()
        (folder / "runs" / "room").touch()
        running.ends_with(outcome)
        assert "warning: " in running.output


def disk_full_at_a_checkpoint(folder: Path, outcome: Outcome) -> None:
    body = """
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(0)
model = torch.nn.Linear(2000, 100)  # 800 kB: the second checkpoint does not fit beside the first
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(400, 2000), torch.randn(400, 100))
run = dynamix.attach(model, optimizer, data)
for x, y in run.batches(iterations=3):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
    run.save("disk/own.pt")
"""
    with _disk(folder / "disk", 1 << 20), job(folder, body) as running:
        running.ends_with(outcome)
        assert load_checkpoint(folder / "disk" / "own.pt")
        assert [path.name for path in (folder / "disk").iterdir()] == ["own.pt"]


def disk_full_at_start(folder: Path, outcome: Outcome) -> None:
    with _disk(folder / "runs", 1 << 12):
        process = dynamix("launch", "-c", str(cluster_file(folder)), "--", "true", cwd=folder)
        output = output_of(process)
        assert process.returncode == outcome.exit_code, output
        assert re.search(outcome.says, output), output
        assert "Traceback" not in output


def run_folder_removed(folder: Path, outcome: Outcome) -> None:
    with job(folder, "started()\nprint('in place', flush=True)\nwhile folder.exists(): time.sleep(0.1)") as running:
        running.wait_until_said("in place", times=2)
        events = running.run_folder / "events.jsonl"
        wait_for(lambda: events.read_text().count('"kind": "started"') == 2, "the launcher to know of both workers")
        shutil.rmtree(running.run_folder)
        running.ends_with(outcome)
        assert "the summary could not be written" in running.output
        assert "Traceback" not in running.output


def launcher_out_of_files(folder: Path, outcome: Outcome) -> None:
    file = cluster_file(folder, workers="[{}, {}]", comm="gloo")
    launch = f"ulimit -n 16; exec {sys.executable} -m dynamix_ps.cli.main launch -c {file} -- sleep 60"
    done = run_to_end(["bash", "-c", launch], folder, timeout_s=LIMIT_S)
    assert done.returncode == outcome.exit_code, done.stdout + done.stderr
    assert re.search(outcome.says, done.stderr), done.stderr
    if "run folder: " in done.stdout:
        assert_nothing_left(run_id_in(done.stdout))


SUMS = """
import torch
import byteps.torch as bps
bps.init()
for _ in range(5):
    assert float(bps.push_pull(torch.ones(1_000_000), name="x", average=False).sum()) == 2_000_000
bps.shutdown()
started()
finished()
"""


def shared_memory_small(folder: Path, outcome: Outcome) -> None:
    file = cluster_file(folder, workers="[{}, {}]", comm="byteps")
    launch = f"{sys.executable} -m dynamix_ps.cli.main launch -c {file} -- python {script(folder, SUMS)}"
    command = ["unshare", "-m", "bash", "-c", f"mount -t tmpfs -o size=4k tmpfs /dev/shm && exec {launch}"]
    done = run_to_end(command, folder, timeout_s=LIMIT_S)
    if "run folder: " not in done.stdout:
        pytest.skip(f"no private /dev/shm here: {done.stderr}")
    assert done.returncode == outcome.exit_code, done.stdout + done.stderr
    assert re.search(outcome.says, done.stdout)
    assert_nothing_left(run_id_in(done.stdout))


SERVE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from server_hooks import peer_watch
from server_hooks.byteps_entry import serve
peer_watch.GONE_S = 1.0
serve()
"""
BY_HAND = """
import time, torch
import byteps.torch as bps
bps.init()
bps.push_pull(torch.ones(10), name="x")
print("up", flush=True)
time.sleep(600)
"""


def roles_by_hand(folder: Path, outcome: Outcome) -> None:
    with ForkedCluster(BY_HAND, serve=SERVE) as cluster:
        for role in ("worker-0", "worker-1"):
            cluster.wait_for(role, "up", 90)
        for role in ("worker-0", "worker-1"):
            cluster.kill(role)
        server, scheduler = (cluster.wait(role, LIMIT_S) for role in ("server-0", "scheduler"))
    assert (server.returncode, scheduler.returncode) == (outcome.exit_code, outcome.exit_code)
    assert re.search(outcome.says, server.output)


MADE: dict[str, Callable[[Path, Outcome], None]] = {
    "terminal-ascii": in_terminal_of("ascii", "h?llo ? ?"),
    "terminal-latin-1": in_terminal_of("latin-1", "h"),
    "stdout-closed": in_shell("LAUNCH >&-"),
    "all-streams-closed": in_shell("LAUNCH <&- >&- 2>&-"),
    "stdout-full": in_shell("LAUNCH >/dev/full"),
    "stdout-reader-gone": in_shell("set -o pipefail; LAUNCH | head -1"),
    "output-flood": output_flood,
    "disk-full-in-training": disk_full_in_training,
    "disk-full-at-a-checkpoint": disk_full_at_a_checkpoint,
    "disk-full-at-start": disk_full_at_start,
    "run-folder-removed": run_folder_removed,
    "launcher-out-of-files": launcher_out_of_files,
    "shared-memory-small": shared_memory_small,
    "roles-by-hand-workers-killed": roles_by_hand,
}


@pytest.mark.parametrize("row", SURROUNDINGS, ids=lambda row: row.key)
def test_the_surroundings_fail(tmp_path: Path, row: object) -> None:
    MADE[row.key](tmp_path, row.outcome)  # type: ignore[attr-defined]
