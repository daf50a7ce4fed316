"""Ends a server or the scheduler when the others are gone, which BytePS itself would wait for without end.

A launcher ends all roles anyway; this module serves roles that are started by hand. A killed worker closes its
connections, and the kernel closes connections to a host that is cut off. A role without workers has nothing left to do.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import NamedTuple

from dynamix_ps.config import variables
from dynamix_ps.errors import PeerLostError
from dynamix_ps.metrics.network.connection import endpoint
from dynamix_ps.metrics.network.own_sockets import OwnSockets, keep_alive, own_sockets

GONE_S = 20.0  # longer than a launcher waits for servers in an orderly end (chosen by us)
_CHECK_EVERY_S = 1.0
_IDLE_S, _PROBE_EVERY_S, _PROBES = 30, 15, 6  # a host that is cut off counts as gone after two minutes


class Peers(NamedTuple):
    """The roles that this role is connected to at one moment."""

    scheduler: bool
    dialled: int  # connections that this role opened to other roles
    accepted: int  # connections that others opened to this role
    left: int = 0  # connections that the other end has closed; BytePS keeps those that it has dialled


def peers_of(sockets: OwnSockets, scheduler: set[str], ignored: set[str]) -> Peers:
    """Sorts the open connections. `scheduler`: where it listens; `ignored`: remote ends that are no peers."""
    others = {
        (local, remote)
        for local, remote in sockets.connected
        if remote not in ignored and (remote, local) not in sockets.connected  # BytePS also connects to itself
    }
    accepted = {pair for pair in others if int(pair[0].rpartition(":")[2]) in sockets.listening}
    dialled = others - accepted
    to_scheduler = {pair for pair in dialled if pair[1] in scheduler}
    left = {pair for pair in sockets.left if pair[1] not in ignored | scheduler}
    return Peers(bool(to_scheduler), len(dialled - to_scheduler), len(accepted), len(left))


class Absence:
    """For how long all peers that were there have been gone. Pure; the caller passes the time."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._seen = Peers(False, 0, 0)
        self._since_s: float | None = None

    def see(self, now_s: float, peers: Peers) -> float:
        """Seconds since the last peer has gone; 0 while a peer is there, or before the first has come."""
        self._seen = Peers(
            self._seen.scheduler or peers.scheduler,
            max(self._seen.dialled, peers.dialled + peers.left),
            max(self._seen.accepted, peers.accepted),
        )
        if not self._alone(peers):
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        return 0.0 if self._since_s is None else now_s - self._since_s

    def _alone(self, peers: Peers) -> bool:
        if self._seen.dialled:  # all roles have met: every one dials the others
            return not peers.dialled
        if self._role == "scheduler":  # before that, the others dial the scheduler
            return bool(self._seen.accepted) and not peers.accepted
        return self._seen.scheduler and not peers.scheduler


def end_when_alone() -> None:
    """From now on, end this process if all other roles have been gone for GONE_S. Returns at once."""
    threading.Thread(target=_watch, name="peer-watch", daemon=True).start()


def endpoints_of(address: str) -> set[str]:
    """The endpoints behind `host:port`; none if it cannot be resolved."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    return {endpoint(str(address[0]), int(address[1])) for *_, address in found}


def _watch() -> None:
    role = os.environ.get("DMLC_ROLE", "").lower()
    scheduler = endpoints_of(f"{os.environ.get('DMLC_PS_ROOT_URI', '')}:{os.environ.get('DMLC_PS_ROOT_PORT', '')}")
    ignored = endpoints_of(variables.get(variables.ARBITRATOR) or "")
    absence = Absence(role)
    while absence.see(time.monotonic(), peers_of(own_sockets(), scheduler, ignored)) < GONE_S:
        keep_alive(_IDLE_S, _PROBE_EVERY_S, _PROBES)
        time.sleep(_CHECK_EVERY_S)
    name = variables.get(variables.ROLE_NAME) or role
    others = "workers and servers" if role == "scheduler" else "workers"
    print(
        f"error: {name}: all {others} have been gone for {GONE_S:.0f} s; this {role} ends", file=sys.stderr, flush=True
    )
    os._exit(PeerLostError.exit_code)
