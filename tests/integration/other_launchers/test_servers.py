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
from tests.integration.other_launchers.jobs import (
    TORCHRUN,
    TRAINS,
    check_adapted,
    job,
    run_of,
    started,
    summary_of,
    training,
)
from tests.integration.other_launchers.test_launchers import bare
from tests.launching import ends, read_until, run_id_in

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
TWO = (*TORCHRUN, "--standalone", "--nproc-per-node", "2")
WITH_FILE = {"DYNAMIX_CONFIG": "cluster.yaml", "DYNAMIX_PLOTS": "no"}


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
    [found] = [pid for pid in processes_of(run_id_in(run.name)) if mark in Path(f"/proc/{pid}/environ").read_bytes()]
    return found


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
    assert '"kind": "role"' in (run / "roles" / "server-0.jsonl").read_text()
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


def test_a_lost_worker_ends_all(folder: Path) -> None:
    """Also where no launcher ends them."""
    command = (sys.executable, str(training(folder, inside=TRAINS)))
    with started([command] * 2, folder, [environ | WITH_FILE for environ in bare(free_port())]) as workers:
        read_until(workers[0], "trains 0 ")
        workers[1].kill()
        ends(workers[0], PeerLostError.exit_code)
        reason = summary_of(run_of(folder))["reason"]
    assert reason.startswith("worker-1 ended before the training was over")


def test_a_job_that_has_lost_a_server_is_started_again_with_others(folder: Path) -> None:
    file = training(folder, inside=f"run.save() if run.iteration == 4 else None; {TRAINS}")
    with started([(*TWO[:-2], "--max-restarts", "1", *TWO[-2:], str(file))], folder, [WITH_FILE]) as [launcher]:
        read_until(launcher, "trains 0 ")
        lost = (folder / "runs" / "latest").resolve()
        os.kill(role_in(lost, "server-0"), signal.SIGKILL)
        ends(launcher, 0)
        summary = summary_of(run_of(folder))
    assert (summary["exit_code"], summary["resumed"]["iteration"]) == (0, 4)
    assert summary_of(lost)["reason"] == "server-0 was killed by SIGKILL; see logs/server-0.log in the run folder"
