"""Processes of BytePS whose workers are forked from a process that has imported torch: each saves more than a second.

With `ForkedCluster` in place of `Cluster`, a worker still is a process of its own, with the environment, folder and log
of its role; it imports BytePS and this project itself. One that needs MXNet, or other variables where libraries are
imported, is a new process.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.testbed.byteps_cluster import BedCluster, Cluster
from benchmarks.testbed.byteps_roles import BytePSRoles
from dynamix_ps.launch.host.fork_server import read_at_import
from tests.launching import environment

_NETWORK = "--net="  # of nsenter
_LOOK_S = 0.02
_END_S = 20.0  # it may be importing


class _Forking(BytePSRoles):
    """Forks the workers that can be forked."""

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        place, environ = self._place(role), options["env"]
        python, *script = command
        if not role.startswith("worker-") or python != sys.executable or len(script) != 1:
            return super()._popen(role, command, **options)
        if "mxnet" in Path(script[0]).read_text() or not server().imports_as(environ):
            return super()._popen(role, command, **options)
        environ.setdefault("DMLC_NODE_HOST", place.address)
        job = {
            "script": script[0],
            "environ": environ,
            "folder": str(options["cwd"]),
            "log": options["stdout"].name,
            "network": next((word.removeprefix(_NETWORK) for word in place.prefix if word.startswith(_NETWORK)), ""),
        }
        return cast("subprocess.Popen[Any]", server().start(job))


class ForkedCluster(_Forking, Cluster):
    """On this machine."""


class ForkedBedCluster(BedCluster, _Forking):
    """On the hosts of a bed."""


class ForkedProcess:
    """A worker: as much of `subprocess.Popen` as a cluster uses."""

    def __init__(self, pid: int, owner: _Server) -> None:
        self.pid, self._owner = pid, owner
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._owner.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(_LOOK_S)
        return code


class _Server:
    """The process that forks, as the tests see it. It ends with them, and its workers with it."""

    def __init__(self) -> None:
        environ = environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        self._imports = read_at_import(environ)
        self._ended: dict[int, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_scripts"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)

    def imports_as(self, environ: Mapping[str, str]) -> bool:
        """Whether a new process with this environment would import the same."""
        return read_at_import(dict(environ)) == self._imports

    def start(self, job: Mapping[str, object]) -> ForkedProcess:
        return ForkedProcess(self._ask(job)["pid"], self)

    def ended(self, pid: int) -> int | None:
        """The exit code of a worker, as `Popen` counts them; None while it runs."""
        if pid not in self._ended:
            self._ended |= {int(one): code for one, code in self._ask({})["ended"].items()}
        return self._ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, job: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@functools.cache
def server() -> _Server:
    """That of this process."""
    return _Server()
