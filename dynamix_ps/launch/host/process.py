"""One role as a process: in its own group, with its output in one pipe; it ends when its parent dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.parent import tied

if TYPE_CHECKING:  # they import the whole schema of cluster files, and every role starts by way of this module
    from dynamix_ps.launch.host.forked_roles import ForkedRoles
    from dynamix_ps.launch.roles.plan import RoleSpec

_PIPE_BYTES = 1 << 20  # what a role may print while this process does something else
READ_BYTES = 1 << 18
_MOST_READS = 250  # after the end of a role


def state_of(pid: int) -> str:
    """The state of a process, a letter as in `ps`; empty if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


class RoleProcess:
    """A started role. `exit_code` follows subprocess: negative for a signal, none while it runs."""

    def __init__(
        self,
        spec: RoleSpec,
        environ: Mapping[str, str],
        group: Path | None = None,
        forked: ForkedRoles | None = None,
    ) -> None:
        """Start it, inside the control group `group` if one is given, and by `forked` if the role can be forked there.

        Raises:
            EnvironmentNotReady: the process could not be started.
        """
        self.spec = spec
        self.exit_code: int | None = None
        self.ended_s: float | None = None  # monotonic
        try:
            process = forked and forked.start(spec.argv, environ, group)
        except OSError:  # the next role that is to be forked finds out, and says so
            process = None
        self._process = process or _as_new(spec, environ, group)
        assert self._process.stdout is not None
        self.pipe = self._process.stdout
        os.set_blocking(self.pipe.fileno(), False)
        with contextlib.suppress(OSError):  # the user's limit for pipes is reached: it stays as it is
            fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def drain(self) -> Iterator[bytes]:
        """The rest in the pipe after the end. Does not wait for a grandchild that keeps the pipe open."""
        for _ in range(_MOST_READS):
            data = self.read()
            if not data:
                return
            yield data

    def read(self) -> bytes | None:
        """Bytes from the pipe; empty at its end, None while there are none. Never blocks."""
        try:
            return os.read(self.pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return None

    def poll(self) -> bool:
        """Whether this call notices the end of the role."""
        if self.exit_code is None and (ended := self._process.ended()) is not None:
            self.exit_code, self.ended_s = ended
            return True
        return False

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP or a debugger holds the process."""
        return self.running and state_of(self.pid) in ("T", "t")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the role and to all processes in its group."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the whole group is gone, or only a zombie is left of it


class _NewProcess(subprocess.Popen[bytes]):
    def ended(self) -> tuple[int, float] | None:
        """The exit code, and when it was noticed; None while it runs."""
        code = self.poll()
        return None if code is None else (code, time.monotonic())


def _as_new(spec: RoleSpec, environ: Mapping[str, str], group: Path | None) -> _NewProcess:
    try:
        return _NewProcess(
            tied(spec.argv, group=group),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise EnvironmentNotReady(f"{spec.name}: cannot start {spec.argv[0]}: {error}") from error


def how_it_ended(exit_code: int | None) -> str:
    """An exit code of subprocess (negative: a signal) in words."""
    if exit_code is None:
        return "is running"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
