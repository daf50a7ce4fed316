"""The roles of a benchmark run. Workers print JSON documents, one per line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

import psutil

from benchmarks.testbed.byteps_roles import BytePSRoles

WORKERS = 2
LIMIT_S = 900.0  # longest silence of a role: the longest case takes ten minutes
_LOOK_S = 1.0  # so often a role that has failed is looked for


class Roles(BytePSRoles):
    """Roles whose input and output are pipes; their logs have what they write to standard error."""

    def _streams(self, log: IO[bytes]) -> dict[str, Any]:
        return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        options["env"]["GLOO_SOCKET_IFNAME"] = self._place(role).interface
        return super()._popen(role, command, **options)

    def rows(self) -> Iterator[Any]:
        """The JSON documents of worker 0, one per line, as they come; then waits until all roles have ended.

        Raises SystemExit if a role fails or worker 0 is silent for too long.
        """
        output = self.processes["worker-0"].stdout
        assert output is not None
        partial, heard_s = b"", time.monotonic()
        while True:
            if select.select([output], [], [], _LOOK_S)[0]:
                data = os.read(output.fileno(), 1 << 16)
                if not data:
                    break
                *lines, partial = (partial + data).split(b"\n")
                yield from map(json.loads, lines)
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > LIMIT_S:
                raise SystemExit(f"worker-0 printed nothing for {LIMIT_S:.0f} s:\n{self._errors('worker-0')}")
            for name, process in self.processes.items():
                if process.poll():
                    raise self._failed(name)
        self._finish()

    def results(self) -> list[Any]:
        """The last JSON documents of the workers, after all roles have ended. Raises SystemExit if one fails."""
        said = self._finish()
        return [json.loads(said[name].splitlines()[-1]) for name in self.processes if name.startswith("worker-")]

    def _finish(self) -> dict[str, str]:
        said = {}
        for name, process in reversed(self.processes.items()):
            try:
                said[name], _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                raise SystemExit(f"{name} did not end within {LIMIT_S:.0f} s:\n{self._errors(name)}") from None
            if process.returncode != 0:
                raise self._failed(name)
        return said

    def _failed(self, name: str) -> SystemExit:
        return SystemExit(f"{name} ended with {self.processes[name].returncode}:\n{self._errors(name)}")

    def _errors(self, name: str) -> str:
        return self.output(name)[-3000:]


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)
