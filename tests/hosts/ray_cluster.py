"""A Ray cluster on the hosts of a bed: the head on one of them, without CPUs, and a node on each other one. Needs ray.

Ray notes the address of a machine in its folder, so every host has that folder for itself: mounted at the same path.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.bed import permitted
from tests.launching import begun, environment, run_to_end, wait_for

NODES = ("node-1", "node-2", "node-3")
WITH_GPU = ("node-1", "node-2")  # a GPU each, as they say
LOGIN = "login"  # the head, on which users launch
_START_S = 90.0
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_MOUNTED = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def unavailable() -> str | None:
    """Why there can be no such cluster; None if there can."""
    missing = importlib.util.find_spec("ray") is None
    return "not installed: ray (pip install dynamix-ps[ray])" if missing else permitted()


class RayCluster:
    """What it starts ends with the bed. `folder`: short, as paths of sockets in it are limited."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self._folder = bed, folder
        self._temporary = folder / "ray"
        self._temporary.mkdir()
        self.address = f"{bed.address(LOGIN)}:6379"
        self._killed: list[str] = []
        head = ("--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={self._temporary}")
        self._start(LOGIN, *head, cpus=0)
        self._wait_until_started(LOGIN)
        for name in NODES:
            self._start_node(name)
        self._wait_until_started(*NODES)
        self._wait_for_nodes(len(NODES))

    def status(self) -> int | None:
        """How many CPUs the cluster has; None if it does not answer."""
        told = run_to_end(self.inside(LOGIN, *_RAY, "status", f"--address={self.address}"), env=self.environment())
        line = next((line for line in told.stdout.splitlines() if line.endswith(" CPU")), "/0.0 CPU")
        return int(float(line.split("/")[1].split()[0])) if told.returncode == 0 else None

    def launch(self, cwd: Path, *arguments: str, on: str = LOGIN) -> subprocess.Popen[str]:
        """`dynamix launch ...` on a host; its standard error and output come in one stream."""
        return self.dynamix(cwd, "launch", *arguments, on=on)

    def dynamix(self, cwd: Path, *arguments: str, on: str = LOGIN) -> subprocess.Popen[str]:
        """`dynamix ...` on a host; its standard error and output come in one stream."""
        argv = self.inside(on, sys.executable, "-m", "dynamix_ps.cli.main", *arguments)
        return begun(argv, cwd, self.environment(RAY_ADDRESS=self.address))

    def kill_node(self, name: str) -> None:
        """As a machine that goes down, but for what Ray has started there."""
        there = f"--node_ip_address={self.bed.address(name)}"
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or ()
            ours = any(str(self._temporary) in word for word in words)  # another cluster may have the same addresses
            if process.info["name"] == "raylet" and there in words and ours:
                process.send_signal(signal.SIGKILL)
        self._killed.append(name)

    def start_killed_nodes(self) -> None:
        """Start the nodes that were killed, once Ray has noticed that they are gone. That takes half a minute."""
        if not self._killed:
            return
        self._wait_for_nodes(len(NODES) - len(self._killed))
        while self._killed:
            self._start_node(self._killed.pop())
        self._wait_for_nodes(len(NODES))

    def inside(self, host: str, *argv: str) -> list[str]:
        """A command that runs on a host."""
        return [*self.bed.inside(host), *self._mounted(host, *argv)]

    def _mounted(self, host: str, *argv: str) -> tuple[str, ...]:
        own = self._folder / host
        own.mkdir(exist_ok=True)
        return ("unshare", "--mount", "sh", "-c", _MOUNTED, "sh", str(own), str(self._temporary), *argv)

    def environment(self, **changes: str) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        return environment(PATH=path, **_QUIET, **changes)

    def _start_node(self, name: str) -> None:
        self._start(name, f"--address={self.address}", cpus=1, gpus=int(name in WITH_GPU))

    def _wait_until_started(self, *hosts: str) -> None:
        """Wait for what Ray writes on these hosts: `ray status` takes a second and more to find out."""
        logs = [self._folder / f"{host}.log" for host in hosts]
        wait_for(
            lambda: all("Ray runtime started" in log.read_text(errors="replace") for log in logs),
            f"Ray to start; see {self._folder}/*.log",
            _START_S,
        )

    def _wait_for_nodes(self, number: int) -> None:
        """Each node has a CPU."""
        wait_for(lambda: self.status() == number, f"{number} nodes of Ray; see {self._folder}/*.log", _START_S)

    def _start(self, host: str, *options: str, cpus: int, gpus: int = 0) -> None:
        resources = (f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--object-store-memory=80000000")
        address = f"--node-ip-address={self.bed.address(host)}"
        argv = self._mounted(host, *_RAY, "start", "--block", address, *resources, *options)
        with (self._folder / f"{host}.log").open("ab") as log:
            environ = self.environment()
            self.bed.popen(host, argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="r"))
    try:
        with Bed({host: Link() for host in (*NODES, LOGIN)}) as bed:
            yield RayCluster(bed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
