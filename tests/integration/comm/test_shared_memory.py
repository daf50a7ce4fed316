"""Memory that roles of one host share: closed to other users, independent of /dev/shm, gone with its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed.byteps_cluster import Cluster
from tests.forked_cluster import ForkedCluster
from tests.launching import wait_for
from tests.other_user import as_another_user, needs_another_user

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 60.0
SEGMENT = "memfd:dynamix"
BY_WORKERS, BY_SERVERS = {"DYNAMIX_HOST_SUM": "workers"}, {"DYNAMIX_HOST_SUM": "server"}
WHO_SUMS = pytest.mark.parametrize("env", [BY_WORKERS, BY_SERVERS], ids=["workers", "servers"])
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a file system and drop capabilities")

# Sums TURNS times, or until the others do not take part, while a DataLoader reads in processes of its own.
SUMMING = """
    import json, os, re, time
    import torch
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    comm.declare("x")
    buffer = torch.from_numpy(comm.allocate(1_000_003, "float32"))
    pattern = torch.arange(len(buffer)).remainder_(1009).float()
    batches = iter(torch.utils.data.DataLoader(range(10**6), num_workers=1, multiprocessing_context="fork"))
    wrong = turn = 0
    complete = True
    while complete and turn < int(os.environ["TURNS"]):
        next(batches)
        torch.add(pattern, turn % 997 * (comm.rank + 1), out=buffer)
        complete = comm.wait(comm.push_pull("x", buffer), 2.0)
        wrong += complete and not torch.equal(buffer, pattern * 2 + turn % 997 * 3)
        turn += 1
        if turn == 20:
            print("summing", flush=True)
    if complete:
        while not os.path.exists("go"):
            time.sleep(0.02)
        comm.shutdown()
    batches._shutdown_workers()
    capabilities = re.search(r"CapEff:\\s*(\\w+)", open("/proc/self/status").read())[1]
    print(json.dumps({"wrong": wrong, "complete": complete, "capabilities": int(capabilities, 16)}), flush=True)
    os._exit(0)  # without the others there is no orderly end
"""


class Under(ForkedCluster):
    """A cluster whose processes run under another command."""

    def __init__(self, command: Sequence[str], env: dict[str, str], turns: int) -> None:
        self._under = command
        super().__init__(SUMMING, env={**env, "TURNS": str(turns)})

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return super()._popen(role, [*self._under, *command], **options)


def summing(env: dict[str, str], turns: int, under: Sequence[str] = ()) -> Under:
    """A cluster of two workers that sum in shared memory; both have made sums."""
    cluster = Under(under, env, turns)
    try:
        for worker in ("worker-0", "worker-1"):
            cluster.wait_for(worker, "summing", LIMIT_S)
    except BaseException:
        cluster.__exit__(None, None, None)
        raise
    return cluster


def descriptors(pid: int) -> list[Path]:
    """The segments that a process has open; its other threads open and close files meanwhile."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if SEGMENT in os.readlink(file):
                found.append(file)
    return found


def users_of(inodes: set[int]) -> list[int]:
    """Processes that still map or hold one of these files."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            mapped = {int(line.split()[4]) for line in (process / "maps").read_text().splitlines()}
            held = {file.stat().st_ino for file in descriptors(int(process.name))}
        except OSError:
            continue  # it has ended
        if inodes & (mapped | held):
            found.append(int(process.name))
    return found


def maps(cluster: Cluster, role: str) -> str:
    return Path(f"/proc/{cluster.pid(role)}/maps").read_text()


def shared_by(cluster: Cluster) -> list[str]:
    return [role for role in ("worker-0", "worker-1", "server-0") if SEGMENT in maps(cluster, role)]


@WHO_SUMS
def test_after_kill_9_nothing_is_left_and_waits_end(env: dict[str, str]) -> None:
    with summing(env, turns=10**9) as cluster:
        workers = {role: cluster.pid(role) for role in ("worker-0", "worker-1")}
        inodes = {file.stat().st_ino for pid in workers.values() for file in descriptors(pid)}
        assert len(inodes) >= 2
        assert ("server-0" in shared_by(cluster)) == (env == BY_SERVERS)
        assert "/dev/shm/" not in maps(cluster, "server-0") and not cluster.segments()
        os.kill(workers["worker-1"], signal.SIGKILL)  # not the processes that it started
        assert cluster.wait("worker-0", LIMIT_S).result["complete"] is False
        assert cluster.wait("worker-0", LIMIT_S).result["wrong"] == 0
        cluster.kill("server-0")
        wait_for(lambda: not users_of(inodes), "the memory to be free")


@needs_another_user
def test_another_user_cannot_open_it() -> None:
    with summing(BY_WORKERS, turns=20) as cluster:
        files = [file for role in ("worker-0", "worker-1") for file in descriptors(cluster.pid(role))]
        assert files

        def attempt() -> None:
            for file in files:
                with pytest.raises(PermissionError):
                    file.open("rb")

        as_another_user(attempt)


# A /dev/shm of 64 KB, and no privilege.
HARD = (
    *("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh"),
    *("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
)


@needs_root
@WHO_SUMS
def test_it_needs_neither_dev_shm_nor_privileges(env: dict[str, str]) -> None:
    with summing(env, turns=20, under=HARD) as cluster:
        assert shared_by(cluster)[:2] == ["worker-0", "worker-1"]
        assert ("server-0" in shared_by(cluster)) == (env == BY_SERVERS)
        (cluster.folder / "go").touch()
        assert cluster.results(LIMIT_S) == [{"wrong": 0, "complete": True, "capabilities": 0}] * 2
