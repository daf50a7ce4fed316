"""A BytePS job like `Cluster` all of whose roles are forked from processes that have a framework imported.

A process that imports torch or MXNet itself takes a second and a half of a core. Each framework has a server of forks,
which begins with the first job that needs it and ends with the process of the tests. Scripts whose data loaders start
processes by `multiprocessing` need `Cluster`: these would come from the server, too.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.testbed.byteps_cluster import Cluster
from tests.forked import NEEDED_LATER, ended_as_a_script

_SERVERS = {framework: forkserver.ForkServer() for framework in ("torch", "mxnet")}
_SERVERS["torch"].set_forkserver_preload(["dynamix_ps.torch", *NEEDED_LATER, __name__])
_SERVERS["mxnet"].set_forkserver_preload(["dynamix_ps.mxnet", "mxnet", __name__])


class AllForkedCluster(Cluster):
    """Its roles begin with the modules that their server of forks has, and else as new processes do."""

    def __init__(self, script: str, workers: int = 2, *, frameworks: Sequence[str] = (), **options: Any) -> None:
        """`frameworks`: of the workers; none: torch."""
        self._frameworks = {f"worker-{rank}": framework for rank, framework in enumerate(frameworks)}
        super().__init__(script, workers, **options)

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        environ = options["env"] | {"DMLC_NODE_HOST": "127.0.0.1"}
        arguments, log = list(command[1:]), self.folder / f"{role}.log"
        process = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(arguments, environ, self.folder, log)
        )
        server = _SERVERS[self._frameworks.get(role, "torch")]
        with patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
            process.start()
        return _AsPopen(process, command)  # type: ignore[return-value]


class _AsPopen:
    """What `Cluster` needs of a Popen."""

    def __init__(self, process: ForkServerProcess, command: Sequence[str]) -> None:
        assert process.pid is not None
        self._process, self._command, self.pid = process, command, process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._command, timeout_s)
        return code


def _become(arguments: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> None:
    """In a new process: what an interpreter with these arguments does, a file or `-c` and a text."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    code = ended_as_a_script(lambda: _run(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(arguments: Sequence[str]) -> None:
    name = arguments[0]
    text = arguments[1] if name == "-c" else Path(name).read_text()
    module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = module, [name]
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
