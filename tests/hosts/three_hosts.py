"""Three hosts that are reached by ssh, and `dynamix launch` on one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.commands import run
from benchmarks.testbed.ssh_hosts import SSH, SshHosts
from dynamix_ps.one_thread import ONE_THREAD
from tests.launching import begun, command_line, environment

ADDRESSES = {"node-1": "10.77.0.1", "node-2": "10.77.0.2", "node-3": "10.77.0.3"}  # as in configs/three-hosts.yaml
HOSTS = tuple(ADDRESSES)
Launchers = list[subprocess.Popen[str]]
LOGIN = "login"  # a host without sshd and without roles


class ThreeHosts(SshHosts):
    """`folder`: for keys and configurations."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        super().__init__(bed, HOSTS, folder)
        self.bed = bed

    def launch(self, cwd: Path, *arguments: str, on: str = HOSTS[0]) -> subprocess.Popen[str]:
        """`dynamix launch ...` on a host; its standard error and output come in one stream."""
        return self.dynamix(cwd, "launch", *arguments, on=on)

    def dynamix(self, cwd: Path, *arguments: str, on: str = HOSTS[0]) -> subprocess.Popen[str]:
        """`dynamix ...` on a host; its standard error and output come in one stream."""
        argv = [*self.bed.inside(on), sys.executable, "-m", "dynamix_ps.cli.main", *arguments]
        return begun(argv, cwd, self.environment(environment()))

    def ssh(self, *arguments: str, on: str) -> subprocess.Popen[bytes]:
        """The user's own ssh on a host."""
        return self.bed.popen(on, [str(self.folder / "bin" / "ssh"), *arguments], stdin=subprocess.DEVNULL)

    @contextmanager
    def switched_off(self, name: str, seen_from: str) -> Iterator[None]:
        """A host that is off while packets from another one are still sent there, as through a router, and lost."""
        neighbour = ("ip", "-n", self.bed.namespace(seen_from), "neigh")
        run(*neighbour, "replace", ADDRESSES[name], "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
        self.bed.unplug(name)
        try:
            yield
        finally:
            self.bed.plug(name)
            run(*neighbour, "del", ADDRESSES[name], "dev", "eth0")


@contextmanager
def three_hosts(folder: Path) -> Iterator[ThreeHosts]:
    with Bed({host: Link() for host in (*HOSTS, LOGIN)}) as bed:
        yield ThreeHosts(bed, folder)


def cluster_file(
    folder: Path,
    script: str,
    hosts: Mapping[str, str | None] = ADDRESSES,
    sizes: Sequence[int] = (),
    comm: str = "gloo",
    mode: str = "off",
    **more: object,
) -> Path:
    """A cluster file whose workers, one per host, run a script with fixed sizes; its run folders lie beside it.

    `hosts`: addresses by name. None of them: this machine alone. `more`: keys of the file.
    """
    (folder / "worker.py").write_text(script)
    file = folder / "cluster.yaml"
    workers = [{"batch": size} for size in sizes] or [{}] * len(hosts)
    named = {"hosts": {name: {"address": address} for name, address in hosts.items()}} if hosts else {}
    keys = {"run_dir": str(folder / "runs"), "comm": comm, "mode": mode, "cluster": {**named, "workers": workers}}
    keys["env"] = ONE_THREAD  # which ssh does not pass on
    file.write_text(json.dumps({"name": "t", **keys, **more, "command": ["python", "worker.py"]}))  # JSON is YAML too
    return file


def ssh_clients(launcher: subprocess.Popen[str]) -> dict[str, int]:
    """The ssh of each host that a launcher has started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    words = {pid: command_line(pid).split("\0") for pid in children}
    return {word: int(pid) for pid, line in words.items() if line[0] == str(SSH) for word in line if word in HOSTS}


def three_workers(folder: Path, script: str) -> Path:
    """A cluster file that names no hosts."""
    return cluster_file(folder, script, {}, (64, 64, 64))


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a worker of that run has recorded."""
    file = folder / "runs" / "latest" / "workers" / f"worker-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]
