"""The socket of a probe: one probe per path. It replaces the file of a probe that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from dynamix_ps.errors import EnvironmentNotReady

_LONGEST_PATH = 107  # bytes, of sockaddr_un
_BACKLOG = 64


class ListeningSocket:
    """A context manager that listens at a path.

    The probe of a run is `private`: nobody but its user, and root, may connect. To the probe of a host any user may:
    the kernel tells the probe who it is.

    The process holds a lock on a file beside the socket, so that only one of two probes that start at the same time
    succeeds. The empty lock file stays: removing it would allow two probes to hold locks of the same name.
    """

    def __init__(self, path: str, private: bool = False) -> None:
        self._path = path
        self._private = private
        self._lock = -1
        self._socket: socket.socket | None = None

    def __enter__(self) -> socket.socket:
        """Raises EnvironmentNotReady if the path cannot be used."""
        try:
            return self._open()
        except OSError as error:
            self.__exit__(None, None, None)
            raise EnvironmentNotReady(
                f"cannot listen at {self._path}: {error.strerror or error}; choose a path with --socket"
            ) from error
        except EnvironmentNotReady:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):  # its folder is gone
                os.unlink(self._path)
            self._socket = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open(self) -> socket.socket:
        if len(os.fsencode(self._path)) > _LONGEST_PATH:
            raise EnvironmentNotReady(f"{self._path}: the path of a socket has at most {_LONGEST_PATH} characters")
        os.makedirs(os.path.dirname(os.path.abspath(self._path)), mode=0o755, exist_ok=True)
        self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentNotReady(f"another probe serves {self._path} already; end it, or use it") from error
        self._remove_stale()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        umask = os.umask(0o177 if self._private else 0o111)  # so that the mode is right from the beginning
        try:
            self._socket.bind(self._path)
        finally:
            os.umask(umask)
        self._socket.listen(_BACKLOG)
        return self._socket

    def _remove_stale(self) -> None:
        try:
            mode = os.lstat(self._path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise EnvironmentNotReady(f"{self._path} exists and is not a socket; choose another path with --socket")
        os.unlink(self._path)  # no process holds the lock, so none serves it
