"""One grid at a time runs on a machine: two would slow each other down, and no figure would show it."""

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
    """Wait until no other grid runs on this machine, and keep others out while the context lasts.

    A container with a network of its own counts as another machine.

    Args:
        on_wait: called once if another grid runs.

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
