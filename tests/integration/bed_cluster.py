"""Real BytePS on a test bed: scheduler and server on host `server`, each worker on its own host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.testbed import Bed
from tests.integration.byteps_cluster import Cluster


class BedCluster(Cluster):
    """Worker i runs on host `worker-i`. `on_start` gets the pid of every role before it can have connected."""

    def __init__(
        self,
        bed: Bed,
        script: str,
        workers: int,
        on_start: Callable[[int], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._bed, self._on_start = bed, on_start
        super().__init__(script, workers, env={**(env or {}), "DMLC_PS_ROOT_URI": bed.address("server")})

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        host = role if role.startswith("worker-") else "server"
        options["env"]["DMLC_NODE_HOST"] = self._bed.address(host)
        process = self._bed.popen(host, command, **options)
        self._on_start(process.pid)
        return process
