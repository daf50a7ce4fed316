"""Asks a fork server (fork_server.py) for workers, and hears of their ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dynamix_ps.launch.host import fork_server
from dynamix_ps.launch.host.shown_process import with_room

_END_S = 5.0
_ANSWER_S = 0.1  # of a server that has imported all
_INHERITED = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class ForkServer:
    """A server of this process, which ends with it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], preloaded: Sequence[str] = ()) -> None:
        """Start it; does not wait.

        `folder`: for its socket. `environ`: of the roles, as far as what they import reads it. `preloaded`: modules
        that it imports beside those of workers.
        """
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "fork"))
            listener.listen()
            self._process = subprocess.Popen(
                fork_server.command(listener.fileno(), preloaded),
                env=with_room(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self.path = (folder / "fork").rename(folder / f"fork-{self._process.pid}")

    def close(self) -> None:
        """End it, and its workers. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it may be importing
            self._process.kill()
            self._process.wait()


class ForkedRoles:
    """A connection to a fork server. When it closes, its workers are killed."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if no server listens at `path`."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._begun = b""  # a line that has not ended
        self._ends: dict[int, tuple[int, float]] = {}
        self._answers: list[dict[str, Any]] = []
        self._ready = False
        self._ended = False

    def wait(self, limit_s: float) -> None:
        """Wait until the server is ready, or this time is over."""
        with suppress(OSError, TimeoutError):
            self._socket.settimeout(limit_s)
            self._hear()

    @property
    def is_ready(self) -> bool:
        """Whether a worker starts at once. Raises OSError if the server has ended."""
        self._hear_all()
        if self._ended:
            raise ConnectionResetError("the process has ended from which workers are forked")
        return self._ready

    def start(
        self, argv: Sequence[str], environ: Mapping[str, str], group: Path | None = None, folder: Path | None = None
    ) -> ForkedProcess | None:
        """A role of a server that is ready; None where this server cannot be one. Raises OSError if it has ended.

        `group`: its control group. `folder`: its working folder; none: that of this process.
        """
        reading, writing = os.pipe()
        request = {
            "argv": list(argv),
            "environ": dict(environ),
            "folder": str(folder or os.getcwd()),
            "group": str(group or ""),
            "limits": [(number, resource.getrlimit(number)) for number in _LIMITS],
        }
        data = json.dumps(request).encode()
        self._socket.setblocking(True)
        try:
            socket.send_fds(self._socket, [len(data).to_bytes(fork_server.LENGTH_BYTES, "big")], [writing])
            self._socket.sendall(data)
            while not self._answers:
                self._hear()
            answer = self._answers.pop()
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        if "pid" not in answer:
            os.close(reading)
            return None
        return ForkedProcess(self, answer["pid"], reading)

    def end_of(self, pid: int) -> tuple[int, float] | None:
        """Exit code and time of the end of a worker; None while it runs. The kernel kills those of an ended server."""
        self._hear_all()
        if self._ended:
            self._ends.setdefault(pid, (-signal.SIGKILL, time.monotonic()))
        return self._ends.get(pid)

    def close(self) -> None:
        self._socket.close()
        self._ended = True

    def _hear_all(self) -> None:
        """What was told so far; does not wait."""
        if self._ended:
            return
        self._socket.setblocking(False)
        try:
            while True:
                self._hear()
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True

    def _hear(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError("the process has ended from which workers are forked")
        *lines, self._begun = (self._begun + data).split(b"\n")
        for told in map(json.loads, lines):
            if "code" in told:
                self._ends[told["pid"]] = (told["code"], told["ended_s"])
            elif "ready" in told:
                self._ready = True
            else:
                self._answers.append(told)


def existing_server(path: str) -> ForkedRoles | None:
    """A connection to a server that listens at `path`; None where there is none, or workers would not inherit the same.

    A worker inherits limits of all kinds: namespaces, control groups, rights, cores.
    """
    try:
        forked = ForkedRoles(Path(path)) if path else None
    except OSError:
        return None
    if forked is not None and _inherited(path.rpartition("-")[2]) != _inherited("self"):
        forked.close()
        return None
    if forked is not None:
        forked.wait(_ANSWER_S)
    return forked


def _inherited(pid: str) -> list[str]:
    """What the children of a process inherit from it, beside what a request tells. Empty: it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        spaces = [os.readlink(one) for one in sorted((folder / "ns").iterdir())]
        status = [line for line in (folder / "status").read_text().splitlines() if line.startswith(_INHERITED)]
        return [*spaces, *status, (folder / "cgroup").read_text(), (folder / "oom_score_adj").read_text()]
    except OSError:
        return []


class ForkedProcess:
    """A worker that a fork server has started, as its owner sees it."""

    def __init__(self, server: ForkedRoles, pid: int, output: int) -> None:
        self._server, self.pid = server, pid
        self.stdout = os.fdopen(output, "rb", buffering=0)

    def ended(self) -> tuple[int, float] | None:
        """Its exit code, as `Popen` counts them, and when it ended, monotonic; None while it runs."""
        return self._server.end_of(self.pid)
