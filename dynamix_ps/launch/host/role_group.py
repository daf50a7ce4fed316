"""The started roles of one host: their output, their ends, and signals to them. The caller runs the loop."""

from __future__ import annotations

import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dynamix_ps.launch.host.forked_roles import ForkedRoles
from dynamix_ps.launch.host.process import READ_BYTES, RoleProcess
from dynamix_ps.launch.messages.agent_messages import FromAgent, RoleEnded, RoleOutput, RunEvent, Started, Suspended
from dynamix_ps.launch.roles.plan import RoleSpec, role_environment

_POLL_S = 0.02
_GATHER_S = 0.01  # after a pipe was emptied: a role that flushes each line would wake this process for each


class RoleGroup:
    """The roles of one host. Reports to `send` what happens to them.

    Args:
        selector: of the loop; the data of each of its keys is a function to call when the key is ready.
        send: called with Started, RoleOutput, RoleEnded and Suspended.
        environ: the environment of the roles.
        has_room: whether `send` takes output now. While it does not, the roles wait with their output.
        before_end: called before the end of a role is reported, to report first what the role has left.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        send: Callable[[FromAgent], None],
        environ: Mapping[str, str],
        has_room: Callable[[], bool] = lambda: True,
        before_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._selector, self._send, self._environ = selector, send, environ
        self._has_room, self._before_end = has_room, before_end
        self._processes: dict[str, RoleProcess] = {}
        self._suspended: set[str] = set()
        self._emptied_s: dict[str, float] = {}  # when the pipe of each was read to its end, monotonic
        self._listening = True
        self._forked: ForkedRoles | None = None
        self._waiting: dict[str, tuple[RoleSpec, Path | None]] = {}  # until workers can be forked

    @property
    def running(self) -> list[str]:
        """Names of the roles that have not ended."""
        return [name for name, process in self._processes.items() if process.running] + list(self._waiting)

    def fork_by(self, forked: ForkedRoles) -> None:
        """From now on, roles are forked by this server. Workers wait until it is ready; other roles do not."""
        self._forked = forked

    def start(self, spec: RoleSpec, control_group: Path | None = None) -> None:
        """Start a role, also one that has ended. Raises EnvironmentNotReady if that fails."""
        if spec.role == "worker" and self._server_of(spec) is not None:
            self._waiting[spec.name] = (spec, control_group)
            self._fork_waiting()
        else:
            self._start(spec, control_group, self._server_of(spec) if self._is_ready() else None)

    def _server_of(self, spec: RoleSpec) -> ForkedRoles | None:
        """The server that forks a role of this command."""
        return self._forked if spec.argv[0] == sys.executable else None

    def _is_ready(self) -> bool:
        """Whether a server forks at once. If it has ended, this is told, and there is none from now on."""
        try:
            return self._forked is not None and self._forked.is_ready
        except OSError as error:
            self._forked = None
            self._send(RunEvent("degraded", {"what": "forks", "detail": f"{error}; workers are started as new ones"}))
            return False

    def _fork_waiting(self) -> None:
        if self._waiting and (self._is_ready() or self._forked is None):
            while self._waiting:
                spec, group = self._waiting.pop(next(iter(self._waiting)))
                self._start(spec, group, self._server_of(spec))

    def _start(self, spec: RoleSpec, control_group: Path | None, forked: ForkedRoles | None) -> None:
        process = RoleProcess(spec, role_environment(spec, self._environ), control_group, forked)
        self._processes[spec.name] = process
        self._suspended.discard(spec.name)
        if self._listening:
            self._listen(process)
        self._send(Started(spec.name))

    def signal(self, names: Iterable[str], number: int) -> None:
        """Send a signal to those named roles that run, and to all processes in their groups."""
        for name in names:
            process = self._processes.get(name)
            if self._waiting.pop(name, None) is not None:
                for message in (Started(name), RoleOutput(name, True, b""), RoleEnded(name, -number, 0.0)):
                    self._send(message)
            elif process is not None and process.running:
                process.signal(signal.Signals(number))

    def tick(self) -> None:
        """Notice what no descriptor shows: which roles have ended, and which SIGSTOP holds."""
        self._fork_waiting()
        if self._has_room() != self._listening:
            self._set_listening(not self._listening)
        for name, process in self._processes.items():
            if process.poll():
                process.signal(signal.SIGKILL)  # what it has left in its group
                self._end(process)
            elif process.running and process.stopped != (name in self._suspended):
                self._suspended ^= {name}
                self._send(Suspended(name, name in self._suspended))

    def end(self, grace_s: float) -> None:
        """End all roles: TERM, then KILL after `grace_s`. Waits for their ends; reports nothing."""
        self._waiting.clear()
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped role gets SIGTERM only when it goes on
            self.signal(self.running, number)
        deadline_s = time.monotonic() + grace_s
        while any(process.running for process in self._processes.values()):
            if time.monotonic() >= deadline_s:
                self.signal(self.running, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            time.sleep(_POLL_S)
        for process in self._processes.values():
            process.signal(signal.SIGKILL)  # what it has left in its group
            if not process.pipe.closed:
                self._unlisten(process)
                process.pipe.close()

    def _end(self, process: RoleProcess) -> None:
        """Report the end of a role, after all its output."""
        if not process.pipe.closed:
            self._unlisten(process)
            for data in process.drain():
                self._send(RoleOutput(process.spec.name, False, data))
            process.pipe.close()
            self._send(RoleOutput(process.spec.name, True, b""))
        self._before_end()
        assert process.exit_code is not None
        assert process.ended_s is not None
        self._send(RoleEnded(process.spec.name, process.exit_code, time.monotonic() - process.ended_s))

    def _read(self, process: RoleProcess) -> None:
        name = process.spec.name
        time.sleep(max(0.0, self._emptied_s.get(name, 0.0) + _GATHER_S - time.monotonic()))
        data = process.read()
        if data is None:
            return
        if len(data) < READ_BYTES:
            self._emptied_s[name] = time.monotonic()
        if not data:  # it has closed its output, and may run on
            self._unlisten(process)
            process.pipe.close()
        self._send(RoleOutput(name, not data, data))

    def _set_listening(self, listening: bool) -> None:
        self._listening = listening
        for process in self._processes.values():
            if not process.pipe.closed:
                (self._listen if listening else self._unlisten)(process)

    def _listen(self, process: RoleProcess) -> None:
        self._selector.register(process.pipe, selectors.EVENT_READ, lambda: self._read(process))

    def _unlisten(self, process: RoleProcess) -> None:
        if process.pipe in self._selector.get_map():
            self._selector.unregister(process.pipe)
