"""Jobs that other launchers start on several hosts, which are network namespaces of one machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.bed import permitted
from tests.hosts.slurm_cluster import NODES, SlurmCluster, unavailable
from tests.hosts.two_hosts import HOSTS
from tests.integration.other_launchers.jobs import (
    TORCHRUN,
    check_adapted,
    job,
    run_of,
    summary_of,
    training,
)
from tests.launching import ends

pytestmark = pytest.mark.timeout(120)
needs_bed = pytest.mark.skipif(permitted() is not None, reason=str(permitted()))


@contextmanager
def two_agents(*arguments: str) -> Iterator[list[tuple[str, ...]]]:
    """The commands of two agents of torchrun, which share neither network nor mounts. Rank 0 may be on either."""
    with Bed({name: Link() for name in HOSTS}) as bed:
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{bed.address('a')}:29400", "--rdzv-id", "t")
        yield [
            (
                *bed.inside(name),
                *("unshare", "--mount"),  # as on another machine: records come by the network alone
                *TORCHRUN,
                *("--nnodes", "2", "--nproc-per-node", "1", *meeting),
                *("--rdzv-conf", f"is_host={int(name == 'a')}", "--local-addr", bed.address(name)),
                *arguments,
            )
            for name in HOSTS
        ]


@needs_bed
def test_records_of_both_hosts_come_together(tmp_path: Path) -> None:
    """Over BytePS, with a server on each."""
    (tmp_path / "cluster.yaml").write_text(
        "comm: byteps\nwindow: 5\nbatch: {min: 4}\ncluster: {workers: [{batch: 16}, {batch: 16}]}\n"
    )
    environ = {"DYNAMIX_CONFIG": "cluster.yaml", "DYNAMIX_PLOTS": "no"}
    with two_agents(str(training(tmp_path))) as commands:
        for code, output in job(commands, tmp_path, [environ, environ]):
            assert code == 0, output
        run = run_of(tmp_path)
    check_adapted(run)
    assert {"server-0.log", "server-1.log"} <= set(os.listdir(run / "logs"))
    for rank in (0, 1):
        lines = (run / "workers" / f"worker-{rank}.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["kind"] == "finished"
    assert any("calls between hosts go unencrypted" in told for told in summary_of(run)["degraded"])


@needs_bed
def test_both_hosts_go_on_from_the_checkpoint_when_one_has_failed(tmp_path: Path) -> None:
    """torchrun counts the restart on the host alone whose worker has failed."""
    fails = "assert rank == 0 or run.iteration < 60 or os.path.exists('failed') or not open('failed', 'w'), 'once'"
    inside = f"run.save() if run.iteration == 40 else None; {fails}"
    with two_agents("--max-restarts", "1", str(training(tmp_path, inside=inside))) as commands:
        for code, output in job(commands, tmp_path):
            assert code == 0, output
        summary = summary_of(run_of(tmp_path))
    assert summary["exit_code"] == 0
    assert summary["resumed"]["iteration"] == 40


@pytest.mark.skipif(unavailable() is not None, reason=f"no Slurm: {unavailable()}")
@pytest.mark.parametrize("nodes", [1, 2])
def test_srun(nodes: int, slurm: SlurmCluster, tmp_path: Path) -> None:
    """On two nodes MASTER_ADDR tells where they meet: this bed has no names of hosts."""
    where = [f"--nodelist={','.join(NODES[:nodes])}", f"--nodes={nodes}", "--ntasks=2"]
    if nodes > 1:
        where.append(f"--export=ALL,MASTER_ADDR={slurm.bed.address(NODES[0])}")
    process = slurm.popen("srun", *where, sys.executable, str(training(tmp_path)), cwd=tmp_path)
    ends(process, 0, limit_s=90)
    check_adapted(run_of(tmp_path))
