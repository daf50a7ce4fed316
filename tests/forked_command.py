"""Commands of this project as forks of a process that has imported them; a test sees each as a `Popen`."""

from __future__ import annotations

import io
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamix_ps.launch.host.forked_roles import ForkedProcess, ForkedRoles

_POLL_S = 0.005


class ForkedCommand(subprocess.Popen[str]):
    """Its standard error and output come in one stream. It has no input."""

    _child_created = False  # what `Popen` waits for when it is deleted

    def __init__(self, server: ForkedRoles, process: ForkedProcess, argv: Sequence[str]) -> None:
        """`server`: a connection for this command alone."""
        self.args, self.pid = list(argv), process.pid
        self.stdin = self.stderr = None
        self.stdout = io.TextIOWrapper(io.BufferedReader(process.stdout), errors="replace")
        self.returncode = None  # type: ignore[assignment]
        self._server, self._process = server, process
        self._rest: list[str] = []
        self._reader: threading.Thread | None = None

    def poll(self) -> int | None:
        if self.returncode is None and (ended := self._process.ended()) is not None:
            self.returncode = ended[0]
            self._server.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        begun_s = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > begun_s + timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(_POLL_S)
        return code

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        assert input is None and self.stdout is not None
        if self._reader is None:
            out = self.stdout
            self._reader = threading.Thread(target=lambda: self._rest.append(out.read()), daemon=True)
            self._reader.start()
        begun_s = time.monotonic()
        self._reader.join(timeout)
        if self._reader.is_alive():
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if timeout is None else max(0.0, begun_s + timeout - time.monotonic()))
        self.stdout.close()
        return self._rest[0], ""


def forked_command(path: str, argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> ForkedCommand | None:
    """A command that the server forks which listens at `path`; None where the server cannot be this process."""
    server = ForkedRoles(Path(path))
    while not server.is_ready:
        server.wait(_POLL_S)
    process = server.start(argv, environ, folder=folder)
    if process is None:
        server.close()
        return None
    return ForkedCommand(server, process, argv)
