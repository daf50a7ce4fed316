"""The stores of workers in a ring: others meet there, and see whether a process is alive.

torch answers for a store in a thread of its own, also while the script is busy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from dynamix_ps.addresses import host_port, split_host_port
from dynamix_ps.errors import EnvironmentNotReady

TRY_S = 1.0  # of one connection to a store, and between two that fail
CONNECT_S = 3.0  # within which members that have come connect to each other; gloo gives up after six times as long


def listen(host: str, port: int) -> socket.socket:
    """A socket for a store. torch would listen on all interfaces. Raises EnvironmentNotReady."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        raise EnvironmentNotReady(
            f"this worker cannot listen on {host_port(host, port)}: {error.strerror}; DMLC_NODE_HOST, or else "
            "DMLC_PS_ROOT_URI, must be an address of its machine, and DMLC_PS_ROOT_PORT a free port of rank 0's"
        ) from error
    return listener


def open_store(host: str) -> tuple[Any, str]:
    """A store in this process, in which others can meet, and its host:port. Raises EnvironmentNotReady."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs do not export it

    listener = listen(host, 0)
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, host_port(host, port)


def knock(address: str) -> None:
    """Connect to the store of another process. Raises ConnectionRefusedError if it is gone, else OSError."""
    host, port = split_host_port(address)
    socket.create_connection((host, int(port)), TRY_S).close()


def reach_store(address: str) -> Any:
    """The store of another process, which has answered. Raises as `knock`, and RuntimeError if it does not answer."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    knock(address)  # torch prints what it cannot reach
    host, port = split_host_port(address)
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S))


class StoreWatch:
    """Open questions, one thread each: torch waits without limit for a process that is stopped."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # addresses of those that are gone
        self._mu = threading.Lock()
        self._asked_s: dict[str, float] = {}  # monotonic time of a question without an answer, by address

    def silent(self, addresses: Mapping[int, str], quiet_s: float) -> frozenset[int]:
        """The ranks whose store has not answered for `quiet_s`. Asks the others. Call this more often than that."""
        now_s = time.monotonic()
        with self._mu:
            for address in set(addresses.values()) - self._asked_s.keys():
                self._asked_s[address] = now_s
                threading.Thread(target=self._ask, args=(address,), name="dynamix-ask", daemon=True).start()
            return frozenset(rank for rank, address in addresses.items() if now_s - self._asked_s[address] >= quiet_s)

    def gone(self, addresses: Mapping[int, str]) -> int | None:
        """The lowest rank whose process is gone; every rank is returned once. None: there is none."""
        for rank, address in sorted(addresses.items()):
            if address not in self._told and _is_gone(address):
                self._told.add(address)
                return rank
        return None

    def _ask(self, address: str) -> None:
        while not _has_answered(address):
            time.sleep(TRY_S)
        with self._mu:
            del self._asked_s[address]


def _has_answered(address: str) -> bool:
    """False: the store cannot be reached. A refused connection is an answer: that process is gone, not silent."""
    try:
        reach_store(address)
    except ConnectionRefusedError:
        return True
    except (OSError, RuntimeError):
        return False
    return True


def _is_gone(address: str) -> bool:
    """Whether the machine answers and nothing listens on the port."""
    try:
        knock(address)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
