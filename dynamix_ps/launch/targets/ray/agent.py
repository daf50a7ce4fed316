"""The agent of a node of Ray, in an actor of Ray: a process whose streams the calls of the actor carry.

This module does not import Ray; driver.py makes an actor of the class.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Sequence

from dynamix_ps.launch.roles.devices import VISIBLE
from dynamix_ps.launch.targets.command_link import AGENT

# Less than the 100 KiB that Ray passes within a call; more would go through its object store.
PIECE_BYTES = 1 << 16
_ERROR_BYTES = 1 << 13
Piece = tuple[bytes, bytes, int | None]  # (standard output, standard error, exit code once it has ended)


class NodeAgent:
    """One agent. Two threads may use it: one sends, one receives.

    Args:
        hides_gpus: whether the roles see no GPU, because Ray has given the job none.
        argv: the command of the agent; empty: the agent of this Python.
    """

    def __init__(self, hides_gpus: bool = False, argv: Sequence[str] = ()) -> None:
        self._argv = tuple(argv) or AGENT
        self._environ = {
            name: value for name, value in os.environ.items() if name != VISIBLE
        }  # Ray sets it for the actor
        if hides_gpus:
            self._environ[VISIBLE] = ""
        self._selector = selectors.DefaultSelector()
        self._process: subprocess.Popen[bytes] | None = None

    def is_up(self) -> bool:
        """Return once the actor has started."""
        return True

    def start(self) -> None:
        """Start the agent. It ends when its input closes, and so also when this process is killed. Raises OSError."""
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks signals, which the agent would inherit
        try:
            self._process = subprocess.Popen(
                self._argv,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._selector.register(self._process.stderr, selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        """Write to the input of the agent, and wait until it has taken all bytes. Empty: close the input."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            if not data:
                self._process.stdin.close()
            while data:
                data = data[self._process.stdin.write(data) :]
        except BrokenPipeError:
            pass  # it has ended; `receive` tells how

    def receive(self, wait_s: float) -> Piece:
        """The next output of the agent; empty if there is none within this time."""
        assert self._process is not None
        assert self._process.stdout is not None
        output = errors = b""
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._process.stdout:
                output = data = os.read(key.fd, PIECE_BYTES)
            else:
                errors = data = os.read(key.fd, _ERROR_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
        if self._process.stdout in self._selector.get_map():
            return output, errors, None
        exit_code = self._process.wait()
        assert self._process.stderr is not None
        with self._process.stdout, self._process.stderr as said:
            if said in self._selector.get_map():  # its reaper may still have it open: do not wait for its end
                self._selector.unregister(said)
                errors += said.read(_ERROR_BYTES) or b""
        return output, errors, exit_code
