"""Whether the processes of a ring are alive: their stores answer questions, in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from dynamix_ps.comm.ring.group import TRY_S, knock, reach_store


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
