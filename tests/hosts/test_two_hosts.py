"""A job on two hosts: it runs, its records come home, and every ending leaves nothing on any host."""

from __future__ import annotations

import csv
import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.testbed import permitted
from tests.hosts.test_ssh import TOLD, TRAINS, gone_within, weights_in
from tests.hosts.two_hosts import two_hosts
from tests.launching import (
    HOOK,
    assert_nothing_left,
    cluster_file,
    dynamix,
    ends,
    read_until,
    run_id_in,
)

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}"),
]

WHERE = """
import psutil
started()
environ = os.environ
own = sorted(a.address for nic in psutil.net_if_addrs().values() for a in nic if a.address.startswith("10.77."))
print("here", environ["DYNAMIX_HOST"], *own, environ["DMLC_NODE_HOST"], environ["DMLC_PS_ROOT_URI"], flush=True)
lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
print("token in command lines:", sum(environ["DYNAMIX_TOKEN"] in line for line in lines), "of many", flush=True)
with open(os.path.join(environ["DYNAMIX_RUN_DIR"], "checkpoints", f"of-{rank}.pt"), "w") as file:
    file.write("weights" * 1000)
finished()
"""
FAILS = """
started()
if rank == 1:
    print("last words", flush=True)
    say("failed", error="loss is NaN", iteration=7)
    sys.exit(9)
while True: time.sleep(0.1)
"""
REAL = """
import torch
import dynamix_ps.torch as dynamix

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(4096, 4), torch.randint(0, 2, (4096,)))
run = dynamix.attach(model, optimizer, data)
for inputs, targets in run.batches(epochs=3):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    optimizer.step()
print("weights", repr(model.weight.sum().item()), flush=True)
run.close()
"""


CHATTY = """
started()
for line in range(6_000):
    print(f"{rank} {line} " + "x" * 1000)
sys.stdout.flush()
with open(os.path.join(os.environ["DYNAMIX_RUN_DIR"], "checkpoints", f"of-{rank}.pt"), "wb") as file:
    file.write(b"w" * 9_000_000)
finished()
"""
RESUMED = """
started()
file = os.environ["DYNAMIX_RESUME"]
print("resumed from", os.path.basename(file), open(file).read(), flush=True)
finished()
"""


def test_a_whole_job_and_its_records(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + WHERE) as job:
        output = ends(job.process, 0)
        assert "worker-0 | here a 10.77.0.1 10.77.0.1 10.77.0.1" in output
        assert "worker-1 | here b 10.77.0.2 10.77.0.2 10.77.0.1" in output
        assert output.count("token in command lines: 0 of many") == 2
        folder = job.run_folder
        for rank in (0, 1):
            assert "here" in (folder / "logs" / f"worker-{rank}.log").read_text()
            assert (folder / "checkpoints" / f"of-{rank}.pt").read_text() == "weights" * 1000
            assert '"finished"' in (folder / "workers" / f"worker-{rank}.jsonl").read_text()
        assert job.summary()["exit_code"] == 0
        assert job.summary()["iterations"] == 3
        assert_nothing_left(run_id_in(output))


def test_a_worker_that_fails_elsewhere_ends_the_job_with_its_cause(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + FAILS) as job:
        output = ends(job.process, 4)
        assert "error: worker-1 ended with exit code 9 at iteration 0: loss is NaN" in output
        assert "  last words" in output.split("last lines of worker-1")[1]
        assert_nothing_left(run_id_in(output))


def test_ctrl_c_ends_the_workers_of_all_hosts_in_order(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + TOLD + TRAINS) as job:
        seen = ""
        while not all(f"training {rank}" in seen for rank in (0, 1)):
            seen += read_until(job.process, "training")
        job.process.send_signal(signal.SIGINT)
        output = ends(job.process, 130, seen)
        assert "interrupted by SIGINT" in output
        assert all(f"told to end {rank}" in output for rank in (0, 1))
        assert_nothing_left(run_id_in(output))


def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + TRAINS) as job:
        run_id = run_id_in(read_until(job.process, "training"))
        job.process.kill()
        gone_within(run_id, 10.0)


def test_a_launcher_of_which_nothing_comes_is_lost_and_its_job_ends(tmp_path: Path) -> None:
    """A stopped launcher is to its agents what a cut link is: the stream stays open, and nothing comes."""
    with two_hosts(tmp_path, HOOK + TRAINS) as job:
        run_id = run_id_in(read_until(job.process, "training"))
        job.process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        gone_within(run_id, 10.0)
        assert time.monotonic() - began_s > 4.0, "a launcher that is busy for some seconds is not lost"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "its agent was killed by SIGKILL"), (signal.SIGSTOP, "nothing has come from it for 7 s")],
)
def test_a_lost_host_ends_the_job_and_is_named(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with two_hosts(tmp_path, HOOK + stubborn + TRAINS) as job:
        seen = read_until(job.process, "training 1")
        os.kill(job.agents()["b"], number)
        output = ends(job.process, 4, seen, limit_s=18)  # less than the grace of an orderly end
        assert f"error: host b is lost: {reason}" in output
        assert "(it ran worker-1)" in output
        gone_within(run_id_in(output), 10.0)


def test_a_host_that_refuses_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + TRAINS, addresses={"b": "10.77.0.9"}) as job:
        output = ends(job.process, 3)
        assert "error: host b: cluster.hosts.b: 10.77.0.9 is no address of that host" in output
        assert "has 10.77.0.2 towards 10.77.0.1" in output
        assert "training" not in output
        assert_nothing_left(run_id_in(output))


def test_much_output_and_large_files_arrive_whole(tmp_path: Path) -> None:
    with two_hosts(tmp_path, HOOK + CHATTY) as job:
        output = ends(job.process, 0, limit_s=80)
        for rank in (0, 1):
            lines = (job.run_folder / "logs" / f"worker-{rank}.log").read_text().splitlines()
            assert [line.split()[:2] for line in lines] == [[f"{rank}", f"{line}"] for line in range(6_000)]
            assert (job.run_folder / "checkpoints" / f"of-{rank}.pt").stat().st_size == 9_000_000
        assert_nothing_left(run_id_in(output))


def test_a_checkpoint_reaches_all_hosts(tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine.pt"
    checkpoint.write_text("the weights")
    with two_hosts(tmp_path, HOOK + RESUMED, resume=checkpoint) as job:
        output = ends(job.process, 0)
        assert output.count("| resumed from mine.pt the weights") == 2


def test_the_weights_are_those_of_one_host(tmp_path: Path) -> None:
    with two_hosts(tmp_path, REAL) as job:
        output = ends(job.process, 0, limit_s=80)
    file = cluster_file(tmp_path, workers="[{}, {}]", comm="gloo")
    alone = dynamix("launch", "-c", str(file), "--", "python", "worker.py", cwd=tmp_path)
    assert set(weights_in(alone.communicate(timeout=80)[0])) == set(weights_in(output))
    assert len(set(weights_in(output))) == 1


@pytest.mark.parametrize("comm", ["gloo", "byteps"])
def test_a_real_training_adapts_over_two_hosts(tmp_path: Path, comm: str) -> None:
    extra = "batch: {min: 8, max: 256}\nwindow: 4\npolicy: {name: random}\nseed: 3\n"
    with two_hosts(tmp_path, REAL, comm=comm, mode="adapt", extra=extra) as job:
        output = ends(job.process, 0, limit_s=80)
        assert len(set(weights_in(output))) == 1, output
        for name in ("server-0", "server-1") if comm == "byteps" else ():
            assert (job.run_folder / "roles" / f"{name}.jsonl").stat().st_size
        with (job.run_folder / "windows.csv").open() as file:
            assert {row["rank"] for row in csv.DictReader(file)} == {"0", "1"}
        with (job.run_folder / "plans.csv").open() as file:
            assert "applied" in {row["status"] for row in csv.DictReader(file)}
        assert_nothing_left(run_id_in(output))
