"""One grid at a time is measured on a machine: two would slow each other down, and no figure would tell."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAME = "\0dynamix-bench"  # abstract (unix(7)): no file, any user, and it goes with its last holder, however that ends
_POLL_S = 1.0  # seldom, as somebody is measuring meanwhile


@contextmanager
def exclusive_machine(on_wait: Callable[[], None]) -> Iterator[int]:
    """Wait until nobody else measures here, `on_wait` being called once if so, and keep others out meanwhile.

    Here is this machine; a container with a network of its own is another one.

    Yields a descriptor that cells inherit: a cell whose runner was killed keeps others out until it has ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as place:
        waited = False
        while not _taken(place):
            if not waited:
                on_wait()
                waited = True
            time.sleep(_POLL_S)
        yield place.fileno()


def _taken(place: socket.socket) -> bool:
    try:
        place.bind(_NAME)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
