"""Scripts that torchrun starts, with a cluster file that has `comm: byteps`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.testbed.ports import free_port
from dynamix_ps.errors import PeerLostError
from dynamix_ps.launch.cleanup.release import processes_of
from tests.integration.other_launchers.jobs import TORCHRUN, check_adapted, job, run_of, started, summary_of, training
from tests.integration.other_launchers.test_launchers import bare
from tests.launching import read_until, run_id_in

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
TWO = (*TORCHRUN, "--standalone", "--nproc-per-node", "2")
WITH_FILE = {"DYNAMIX_CONFIG": "cluster.yaml"}
SAYS = "print('trains', rank, os.getpid(), flush=True) if run.iteration == 5 else None"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a cluster file for two workers."""
    (tmp_path / "cluster.yaml").write_text(
        "name: t\ncomm: byteps\nwindow: 5\nbatch: {min: 2, max: 40}\ncluster: {workers: [{batch: 16}, {batch: 16}]}\n"
        "policy: {name: proportional}\nmetrics: {interval_s: 0.5}\n"
    )
    return tmp_path


def role_in(run: Path, name: str) -> int:
    """The process of a role."""
    mark = f"DYNAMIX_ROLE_NAME={name}".encode()
    found = [pid for pid in processes_of(run_id_in(run.name)) if mark in Path(f"/proc/{pid}/environ").read_bytes()]
    return min(found)  # the arbitrator, which the scheduler starts, has the same variables


def test_two_workers_are_one_process_while_plans_change(folder: Path) -> None:
    file = training(
        folder,
        before="place = dynamix.before_all(lambda: open('prepared', 'x').close()); seen = []",
        inside="seen.append(x)",
        after="torch.save((seen, model.state_dict()), f'trained-{rank}.pt')",
    )
    [(code, output)] = job([(*TWO, str(file))], folder, [WITH_FILE])
    assert code == 0, output
    run = run_of(folder)
    check_adapted(run)
    assert "server-0" in (run / "servers.csv").read_text()
    (first, trained), (second, same) = (torch.load(folder / f"trained-{rank}.pt") for rank in (0, 1))
    torch.manual_seed(0)
    torch.randn(512, 6)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for parts in zip(first, second, strict=True):
        x = torch.cat(parts)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    assert len({len(x) for x in first}) > 1
    for name, values in model.state_dict().items():
        torch.testing.assert_close(trained[name], values)
        assert torch.equal(trained[name], same[name])


@pytest.mark.parametrize("name", ["server-0", "scheduler"])
def test_a_lost_server_ends_all(name: str, folder: Path) -> None:
    """Also where nobody ends the workers."""
    command = (sys.executable, str(training(folder, inside=SAYS)))
    environs = [environ | WITH_FILE for environ in bare(free_port())]
    with started([command] * 2, folder, environs) as workers:
        for rank, worker in enumerate(workers):
            read_until(worker, f"trains {rank} ")
        os.kill(role_in((folder / "runs" / "latest").resolve(), name), signal.SIGKILL)
        for worker in workers:
            output, _ = worker.communicate(timeout=60)
            assert worker.returncode == PeerLostError.exit_code, output
        summary = summary_of(run_of(folder))
    assert (summary["exit_code"], summary["reason"]) == (
        4,
        f"{name} was killed by SIGKILL; see logs/{name}.log in the run folder",
    )


def test_a_lost_worker_ends_all(folder: Path) -> None:
    command = (sys.executable, str(training(folder, inside=SAYS)))
    environs = [environ | WITH_FILE for environ in bare(free_port())]
    with started([command] * 2, folder, environs) as workers:
        read_until(workers[0], "trains 0 ")
        workers[1].kill()
        output, _ = workers[0].communicate(timeout=60)
        assert workers[0].returncode == PeerLostError.exit_code, output
        reason = summary_of(run_of(folder))["reason"]
    assert reason.startswith("worker-1 ended before the training was over")


def test_a_job_that_is_started_again_has_new_servers(folder: Path) -> None:
    dies = "os.kill(os.getpid(), 9) if rank and begins_anew and run.iteration == 60 else None"
    file = training(
        folder,
        before="begins_anew = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'",
        inside=f"run.save() if run.iteration == 40 else None; {dies}",
    )
    [(code, output)] = job([(*TWO[:-2], "--max-restarts", "1", *TWO[-2:], str(file))], folder, [WITH_FILE])
    assert code == 0, output
    summary = summary_of(run_of(folder))
    assert (summary["exit_code"], summary["resumed"]["iteration"]) == (0, 40)
