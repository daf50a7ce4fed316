"""Sums that go on when a worker or server is lost. A control thread calls this beside training, and beside a server.

A round is all that a worker pushes up to a wait that returns true. All workers push and wait in the same order, so a
round has the same number and the same buffers on all of them. `comm/plane.py` says what each call does, and
docs/membership.md in which order the coordinator has workers and servers call them.

DYNAMIX_ELASTIC=1 in the environment of all roles turns this on. Sums then use no shared memory, because a lost worker
would leave it locked.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Collection, Mapping
from ctypes import POINTER, byref, c_double, c_int, c_int32
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.exchange import Exchange
from dynamix_ps.comm.byteps.placement import servers_in_turn, shares_without
from dynamix_ps.comm.byteps.server_watch import ServerWatch
from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.membership.sums import SumProgress

_MOST_WORKERS = 1024
_KINDS = ("server", "worker", "scheduler")  # in the order of ps-lite's numbers


class ElasticWorker:
    """A `WorkerPlane`: the sums of this worker, for a thread beside the training thread, which may call at any time.

    Args:
        shares: returns the part of all bytes that each server sums, (S,); the same on all workers.
    """

    address = ""

    def __init__(self, exchange: Exchange, shares: Callable[[], NDArray[np.float64]]) -> None:
        self._exchange, self._shares = exchange, shares
        self._watch = ServerWatch(lambda server, limit_s: exchange.echo_s(server, 1, limit_s) >= 0)

    def freeze(self) -> SumProgress:
        """Waits for sums return false until `resume`."""
        self._exchange.freeze()
        return self.status()

    def status(self) -> SumProgress:
        return SumProgress(*self._exchange.status())

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """Does nothing: the servers know the workers."""

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """A worker sends its pushes of this round again, to the remaining servers, and ignores older sums.

        A worker that is one round behind completes its round unchanged.
        Raises ValueError if this worker is neither in this round nor one behind, if it has had this generation, and if
        no server is left.
        """
        servers = self._servers_without(lost_servers)
        if not self._exchange.resume(generation, round_number, contributions, servers):
            found = self.status().first_incomplete
            raise ValueError(
                f"cannot resume with generation {generation} at round {round_number}: this worker is at round {found}, "
                "and each generation comes once"
            )

    def expect(self, contributions: int) -> None:
        self._exchange.expect(contributions)

    def depart(self, over: Callable[[], bool]) -> bool:
        """True: the servers have the sums that others need."""
        return True

    def silent(self, quiet_s: float) -> frozenset[int]:
        """No worker: the servers know which worker a sum waits for."""
        return frozenset()

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        """The transport of a server answers. One thread calls this. Sleeps without the GIL."""
        status = self.status()
        progress = (status.first_incomplete, *sorted(status.missing.items()))
        return self._watch.silent(self.unanswered(), progress, quiet_s)

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Returns the number of the round: the servers have the sums of earlier rounds."""
        self.use_servers_without(lost_servers)
        self._exchange.enter(generation, round_number, contributions)
        return round_number

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        self._exchange.spread(self._servers_without(lost_servers))

    def answers(self, server: int, limit_s: float) -> bool:
        """A joiner answers once it can take part in sums."""
        return self._watch.answers(server, limit_s)

    def unanswered(self) -> frozenset[int]:
        return self._exchange.unanswered()

    def _servers_without(self, lost: Collection[int]) -> NDArray[np.int32]:
        return servers_in_turn(shares_without(self._shares(), lost))

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        found = self._exchange.next_loss(timeout_s)
        return None if found is None else peer_failure(*found)


class ElasticServer:
    """A `Plane`: the sums of the server in this process. Create it before serving.

    In the process of a scheduler, `next_loss` returns the losses of the scheduler.
    """

    def __init__(self) -> None:
        """Raises EnvironmentNotReady if BytePS is not installed."""
        library = ctypes.CDLL(str(_server_library()))
        self._silent = library.byteps_server_silent
        self._silent.restype, self._silent.argtypes = c_int, (c_double, POINTER(c_int32), c_int)
        self._next_loss = library.byteps_server_next_loss
        self._next_loss.restype, self._next_loss.argtypes = c_int, (c_double, POINTER(c_int))

    def silent(self, quiet_s: float) -> frozenset[int]:
        """The transport of a worker answers, even while its program is busy."""
        ranks = (c_int32 * _MOST_WORKERS)()
        return frozenset(ranks[: int(self._silent(quiet_s, ranks, _MOST_WORKERS))])

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        rank = c_int()
        kind = int(self._next_loss(timeout_s, byref(rank)))
        return None if kind < 0 else peer_failure(kind, rank.value)


def _server_library() -> Path:
    """The library that importing `byteps.server` loads; the import itself would serve."""
    package = importlib.util.find_spec("byteps")
    places = (package.submodule_search_locations if package else None) or []
    found = [path for place in places for path in Path(place, "server").glob("c_lib*.so")]
    if not found:
        raise EnvironmentNotReady("BytePS is not installed.\nNext: dynamix build-byteps")
    return found[0]


def peer_failure(kind: int, rank: int) -> PeerFailure:
    """`kind`: ps-lite's number."""
    return PeerFailure(_KINDS[kind], rank)
