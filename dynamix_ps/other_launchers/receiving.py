"""Records of other machines, as they come to rank 0's."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.launch.messages.agent_messages import Decoder, FilePart, Message
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver
from dynamix_ps.launch.messages.message_stream import MessageStream
from dynamix_ps.other_launchers.proven import CALLED, prove

_MOST_STRANGERS = 16  # that may be about to prove themselves at the same time


@dataclass(slots=True)
class _Machine:
    connection: socket.socket
    files: FolderReceiver
    stream: MessageStream | None = None


class Receiving:
    """Call `look` often.

    Args:
        listener: descriptor of a socket that listens. This object closes it.
        machines: how many are to come.
        folder: the run folder.
        token: of the run.

    Attributes:
        problem: why part of the records is lost; None: it is not.
    """

    def __init__(self, listener: int, machines: int, folder: Path, token: str) -> None:
        self._listener, self._machines, self._folder, self._token = (
            socket.socket(fileno=listener),
            machines,
            folder,
            token,
        )
        self._selector = selectors.DefaultSelector()
        self._came: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._open: list[_Machine] = []
        self._n_ended = 0
        self.problem: str | None = None
        threading.Thread(target=self._accept, name="dynamix-records", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether all machines have sent all of their records."""
        return self._n_ended == self._machines

    def look(self) -> None:
        """Take in what has come."""
        while not self._came.empty():
            self._begin(self._came.get())
        for _ in range(1000):  # a machine that sends without end leaves time for the rest
            ready = self._selector.select(0) if self._selector.get_map() else []
            if not ready:
                return
            for key, _ in ready:
                key.data()

    def close(self) -> None:
        """End all connections."""
        if not self.is_over:
            missing = self._machines - self._n_ended
            self.problem = self.problem or f"the records of {missing} other machine(s) have not come to their end"
        for machine in self._open:
            machine.files.close()
            machine.connection.close()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._strangers.acquire()
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: socket.socket) -> None:
        try:
            prove(connection, self._token, CALLED)
            self._came.put(connection)
        except OSError as error:
            print(f"a connection for records is refused: {error}", flush=True)
            connection.close()
        finally:
            self._strangers.release()

    def _begin(self, connection: socket.socket) -> None:
        machine = _Machine(connection, FolderReceiver(self._folder))
        self._open.append(machine)

        def take(message: Message) -> None:
            try:
                if isinstance(message, FilePart):
                    machine.files.take(message)
            except (OSError, ValueError) as error:
                self.problem = self.problem or f"records of another machine: {error}; part of them is lost"

        def end(reason: str) -> None:
            if reason:
                self.problem = self.problem or f"records of another machine: {reason}; part of them is lost"
            machine.files.close()
            connection.close()
            self._open.remove(machine)
            self._n_ended += 1

        descriptor = connection.fileno()
        machine.stream = MessageStream(self._selector, descriptor, descriptor, take, end, Decoder())
