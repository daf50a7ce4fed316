"""Messages over two non-blocking file descriptors. The caller drives the selector."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from dynamix_ps.launch.messages.agent_messages import Decoder, Message, StreamError, encode

_READ_BYTES = 1 << 16
_MOST_WAITING_BYTES = 4 << 20


class MessageStream:
    """Registers itself with the selector; the data of each of its keys is a function to call when the key is ready.

    Args:
        selector: the selector of the loop that calls these functions.
        reading: descriptor of a pipe, socket or terminal.
        writing: another descriptor, of the same kind or not.
        on_message: called for every message.
        on_end: called once when the stream has ended: with an empty reason if the other end has closed it, else with
            the reason, such as bytes that are no message. Not called after `close`.
        decoder: cuts the incoming bytes into messages.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        reading: int,
        writing: int,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        decoder: Decoder,
    ) -> None:
        self._selector, self._reading, self._writing = selector, reading, writing
        self._on_message, self._on_end, self._decoder = on_message, on_end, decoder
        self._waiting = bytearray()  # to be written
        self._writing_watched = False
        self._open = True
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        selector.register(reading, selectors.EVENT_READ, self._read)

    @property
    def has_room(self) -> bool:
        """Whether the other end keeps up. If not, send nothing that can wait."""
        return len(self._waiting) < _MOST_WAITING_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether all messages have been written."""
        return not self._waiting

    def send(self, message: Message) -> None:
        """Send without waiting; the bytes that the descriptor does not take now follow later."""
        if self._open:
            self._waiting += encode(message)
            self._write()

    def close(self) -> None:
        """Stop reading and writing. The descriptors stay open. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._selector.unregister(self._reading)
        if self._writing_watched:
            self._selector.unregister(self._writing)

    def _read(self) -> None:
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"{error.strerror or error}")
            return
        if not data:
            self._end("")
            return
        try:
            for message in self._decoder.feed(data):
                self._on_message(message)
                if not self._open:
                    return
        except StreamError as error:
            self._end(str(error))

    def _write(self) -> None:
        try:
            while self._waiting:
                with memoryview(self._waiting) as view:
                    written = os.write(self._writing, view[:_READ_BYTES])
                del self._waiting[:written]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._waiting.clear()  # the other end is gone; what it has sent before is still to be read, to its end
        except OSError as error:
            self._end(f"{error.strerror or error}")
            return
        self._watch_writing(bool(self._waiting))

    def _watch_writing(self, wanted: bool) -> None:
        if wanted and not self._writing_watched:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._write)
        elif self._writing_watched and not wanted:
            self._selector.unregister(self._writing)
        self._writing_watched = wanted

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(reason)
