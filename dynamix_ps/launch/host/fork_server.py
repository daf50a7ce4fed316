"""A process that has torch imported and starts workers by forking itself, so that none of them imports it again.

It computes nothing, attaches to nothing and has one thread. A worker gets the environment, folder, limits and session
that it would have as a new process; it is shown by these in /proc too. Its random numbers are its own. It then runs its
script as Python would. A command that needs a Python of its own replaces the worker, as a new process does: one that is
no script of this interpreter, one that uses MXNet, or one beside whose script a file has the name of a loaded module.
Other programs of this project are forked in the same way.

Whoever connects to the socket is told when the server is ready. A request has the command of a worker and the handle of
its output; the answers are its number, and later its exit code. When the connection ends, its workers are killed.
When the standard input of the server closes, it ends, and its workers with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.host.parent import tie_to_parent
from dynamix_ps.launch.host.shown_process import has_room, show_as
from dynamix_ps.own_process import ROOT
from dynamix_ps.parts import load

_BPSLAUNCH = "dynamix_ps.cli.bpslaunch"
_SCRIPTS = "dynamix_ps.launch.host.forked_script"
PRELOADED = ("dynamix_ps.torch", _BPSLAUNCH, _SCRIPTS)
# Whose values libraries read while they are imported: a worker that has others needs a process of its own.
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_"),
    *("NUMEXPR_", "NPY_", "ATEN_", "TORCH", "PYTORCH_"),
)
LENGTH_BYTES = 4
# A batch system may send them to all processes of a host. They are for the workers, after which the server ends.
_FOR_WORKERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_MAIN = """\
import sys
if not getattr(sys.flags, "safe_path", False): del sys.path[0]
plain = sys.path[:]
sys.path.append({root!r})
from dynamix_ps.launch.host.fork_server import main
main(plain)
"""


def command(listener: int, preloaded: Sequence[str]) -> tuple[str, ...]:
    """The command line of a server that listens at this inherited descriptor, and imports these modules too."""
    return (sys.executable, "-c", _MAIN.format(root=ROOT), str(listener), *preloaded)


def read_at_import(environ: dict[str, str]) -> dict[str, str]:
    """The variables by which processes must agree to share what they have imported."""
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_IMPORT)}


def main(plain_path: Sequence[str]) -> None:
    """Serve. Returns in a worker, after its script. `plain_path`: `sys.path` of a script without its own folder."""
    handlers = [signal.signal(number, signal.SIG_IGN) for number in _FOR_WORKERS]
    environ = dict(os.environ)
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else collections in the workers would visit, and so copy, all that was imported
    script = _Server(listener, environ, handlers).serve()
    if script is not None:
        load(f"{_SCRIPTS}:run")(script, plain_path)


class _Server:
    def __init__(self, listener: socket.socket, environ: dict[str, str], handlers: Sequence[Any]) -> None:
        """`handlers`: of the signals of workers."""
        self._listener, self._environ, self._handlers = listener, environ, handlers
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: process number, who has asked

    def serve(self) -> list[str] | None:
        """Fork workers until the standard input closes. In a worker: returns what it becomes."""
        for file in (sys.stdin, self._listener):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end_workers(None)
                    return None
                if key.fileobj is self._listener:
                    peer = self._listener.accept()[0]
                    self._selector.register(peer, selectors.EVENT_READ)
                    _tell(peer, {"ready": True})
                elif key.fd in self._workers:
                    self._ended(key.fd)
                elif (script := self._asked(key.fileobj)) is not None:  # type: ignore[arg-type]
                    return script

    def _asked(self, peer: socket.socket) -> list[str] | None:
        """A request, or the end of a connection. In a worker: returns what it becomes."""
        try:
            length, handles, _, _ = socket.recv_fds(peer, LENGTH_BYTES, 1)
            request = json.loads(_received(peer, int.from_bytes(length, "big"))) if handles else None
        except (OSError, ValueError):
            request = None
        if request is None:
            self._end_workers(peer)
            self._selector.unregister(peer)
            peer.close()
            return None
        environ = request["environ"]
        if read_at_import(environ) != read_at_import(self._environ) or not has_room(environ):
            told: dict[str, Any] = {"refused": True}
        elif pid := self._fork():
            handle = os.pidfd_open(pid)
            self._workers[handle] = (pid, peer)
            self._selector.register(handle, selectors.EVENT_READ)
            told = {"pid": pid}
        else:
            return self._become_worker(request, handles[0])
        os.close(handles[0])
        _tell(peer, told)
        return None

    def _fork(self) -> int:
        """As `os.fork`. No signal to the new process is lost: it has the handlers of a worker before it gets one."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_WORKERS)
        pid = os.fork()
        if not pid:
            for number, handler in zip(_FOR_WORKERS, self._handlers, strict=True):
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_WORKERS)
        return pid

    def _ended(self, handle: int) -> None:
        pid, peer = self._workers.pop(handle)
        self._selector.unregister(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if peer.fileno() >= 0:
            _tell(peer, {"pid": pid, "code": code, "ended_s": time.monotonic()})

    def _end_workers(self, peer: socket.socket | None) -> None:
        """Of a peer, or all."""
        for pid, asked in self._workers.values():
            if peer is None or asked is peer:
                with suppress(ProcessLookupError):  # it has not begun its session
                    os.killpg(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)

    def _close(self) -> None:
        """Close all that is open for serving, each by its owner: none closes a descriptor that a script has later."""
        keys = list(self._selector.get_map().values())
        self._selector.close()
        for key in keys:
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            elif key.fileobj is not sys.stdin:
                key.fileobj.close()  # type: ignore[attr-defined]

    def _become_worker(self, request: dict[str, Any], output: int) -> list[str]:
        """In a new process: everything that a process inherits from the one that starts it, then its command."""
        server = os.getppid()
        os.setsid()
        tie_to_parent(server)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)
        self._close()
        if request["group"]:
            Path(request["group"], "cgroup.procs").write_text(f"{os.getpid()}")
        for number, limits in request["limits"]:
            resource.setrlimit(number, tuple(limits))
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environ"])
        show_as(request["argv"], request["environ"])
        return _ready(request["argv"])


def _ready(argv: list[str]) -> list[str]:
    """The script of a role, whose environment is made ready for it. Does not return for other commands."""
    found = argv
    if _BPSLAUNCH in argv:
        commands: list[list[str]] = []
        launched = argv[argv.index(_BPSLAUNCH) + 1 :]
        code = exit_code_of(lambda: load(f"{_BPSLAUNCH}:run")(launched, commands.append))
        if not commands:
            sys.exit(code)
        found = commands[0]
    script: list[str] | None = load(f"{_SCRIPTS}:script_of")(found)
    if script is None:
        os.execvp(found[0], found)
    show_as(found, dict(os.environ))
    return script


def _received(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = peer.recv(length - len(data))
        if not part:
            raise OSError("the connection has ended within a request")
        data += part
    return data


def _tell(peer: socket.socket, told: dict[str, Any]) -> None:
    with suppress(OSError):  # it is gone, which the selector shows
        peer.sendall(json.dumps(told).encode() + b"\n")
