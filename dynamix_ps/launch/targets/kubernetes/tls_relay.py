"""Passes bytes between a TLS connection and two descriptors, the streams of an agent or of a launcher."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from contextlib import suppress

_READ_BYTES = 1 << 16
_MOST_BYTES = 1 << 20  # that wait in one direction
_FLUSH_S = 5.0  # for the rest of what was read here
_LINGER_S = 2.0  # for the other end to take it

_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsRelay:
    """One connection and its two descriptors.

    Args:
        connection: a connection after its handshake.
        reading: a descriptor whose bytes go to the connection.
        writing: a descriptor that gets the bytes of the connection.
    """

    def __init__(self, connection: ssl.SSLSocket, reading: int, writing: int) -> None:
        self._connection, self._reading, self._writing = connection, reading, writing
        self._outgoing, self._incoming = bytearray(), bytearray()
        self._here_open = self._there_open = self._takes = True
        self._problem = ""
        connection.setblocking(False)
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)

    def run(self) -> str:
        """Pass bytes until one side ends, and then the rest. Closes the connection.

        Returns why the other end is gone; empty: this side has ended, by closing `reading`.
        """
        until_s: float | None = None  # monotonic; set at the end of this side
        while self._here_open or self._outgoing:
            if not self._there_open and not self._incoming:
                break
            if not self._here_open:
                until_s = until_s or time.monotonic() + _FLUSH_S
                if time.monotonic() > until_s:
                    break
            self._step(None if until_s is None else until_s - time.monotonic())
        self._close()
        return "" if self._there_open else self._problem or "the other end has closed the connection"

    def _step(self, wait_s: float | None) -> None:
        """Wait until a descriptor is ready, and pass its bytes. Stops reading where too many bytes wait."""
        secured = self._connection.fileno()
        wanted = {secured: 0, self._reading: 0, self._writing: 0}
        if self._there_open:
            wanted[secured] |= select.POLLIN if len(self._incoming) < _MOST_BYTES else 0
            wanted[secured] |= select.POLLOUT if self._outgoing else 0
        if self._here_open and len(self._outgoing) < _MOST_BYTES:
            wanted[self._reading] |= select.POLLIN
        if self._incoming:
            wanted[self._writing] |= select.POLLOUT
        poll = select.poll()
        for descriptor, events in wanted.items():
            if events:
                poll.register(descriptor, events)
        ready = dict(poll.poll(None if wait_s is None else max(0.0, wait_s) * 1000))
        if self._reading in ready:
            self._read()
        if self._outgoing and self._there_open:
            self._send()
        if secured in ready and self._there_open:
            self._receive()
        if self._incoming:
            self._write()

    def _read(self) -> None:
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._here_open = bool(data)
        self._outgoing += data

    def _send(self) -> None:
        try:
            while self._outgoing:
                sent = self._connection.send(bytes(self._outgoing[:_READ_BYTES]))
                del self._outgoing[:sent]
        except _WAITS:
            return
        except OSError as error:  # SSLError is one
            self._lose(error)

    def _receive(self) -> None:
        """Take all decrypted bytes: the descriptor does not show that they wait."""
        try:
            while len(self._incoming) < _MOST_BYTES or self._connection.pending():
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    self._lose(None)
                    return
                self._incoming += data
        except _WAITS:
            return
        except OSError as error:
            self._lose(error)

    def _write(self) -> None:
        try:
            while self._incoming and self._takes:
                written = os.write(self._writing, self._incoming[:_READ_BYTES])
                del self._incoming[:written]
        except BlockingIOError:
            return
        except OSError:
            self._takes = False  # what it has said before is still to be read, to its end
        if not self._takes:
            self._incoming.clear()

    def _lose(self, error: OSError | None) -> None:
        self._there_open = False
        self._outgoing.clear()
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            self._problem = f"TLS: {error.reason or error}"
        elif error is not None:
            self._problem = f"the connection is lost: {error.strerror or error}"

    def _close(self) -> None:
        """Close so that the other end gets all sent bytes: with unread bytes here, the kernel would drop them."""
        with suppress(OSError, ValueError):
            self._connection.unwrap()  # says that nothing follows
        with socket.socket(fileno=self._connection.detach()) as plain, suppress(OSError):
            plain.shutdown(socket.SHUT_WR)
            until_s = time.monotonic() + _LINGER_S
            while self._there_open and (left_s := until_s - time.monotonic()) > 0:
                plain.settimeout(left_s)
                if not plain.recv(_READ_BYTES):
                    break
