"""Ports of a run: a fixed port must be free; others are picked."""

from __future__ import annotations

import errno
import random

import psutil

from dynamix_ps.addresses import bind_error, host_port
from dynamix_ps.config.schema import Cluster
from dynamix_ps.errors import EnvironmentNotReady

# Below the range from which Linux takes the local ports of outgoing connections (32768 and up): a port from
# here cannot go to a connection between the moment we pick it and the moment its role binds it.
_PICK_FROM = range(20_000, 32_000)
_TRIES = 200


def choose_ports(cluster: Cluster, rng: random.Random) -> tuple[int, int]:
    """(scheduler's port, arbitrator's port), all free at this moment.

    Raises:
        EnvironmentNotReady: a fixed port is taken (the message names its owner if visible), or is on another host.
    """
    port = require_free(cluster.host, cluster.port, "cluster.port") if cluster.port else 0
    arbitrator = cluster.arbitrator_port
    if arbitrator:
        require_free(cluster.host, arbitrator, "cluster.arbitrator_port")
    port = port or _pick(cluster.host, rng, taken={arbitrator})
    return port, arbitrator or _pick(cluster.host, rng, taken={port})


def require_free(host: str, port: int, key: str) -> int:
    """The port if it is free. `key` names it in the message. Raises EnvironmentNotReady."""
    error = bind_error(host, port)
    if error is None:
        return port
    if error.errno != errno.EADDRINUSE:
        raise EnvironmentNotReady(f"{key}: cannot bind {host_port(host, port)}: {error.strerror}; {_advice(error)}")
    owner = owner_of(port)
    held = f"by {owner}" if owner else "by a process that is not visible to this user"
    raise EnvironmentNotReady(
        f"{key}: port {port} on {host} is in use {held}; end it, or set {key}: 0 to pick a free port"
    )


def _pick(host: str, rng: random.Random, taken: set[int]) -> int:
    for _ in range(_TRIES):
        port = rng.choice(_PICK_FROM)
        if port in taken:
            continue
        error = bind_error(host, port)
        if error is None:
            return port
        if error.errno != errno.EADDRINUSE:
            raise EnvironmentNotReady(f"cluster.host: cannot bind {host}: {error.strerror}; {_advice(error)}")
    raise EnvironmentNotReady(f"found no free port on {host} between {_PICK_FROM.start} and {_PICK_FROM.stop - 1}")


def _advice(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "ports below 1024 need root"
    return "all roles run on this machine, so host must be one of its addresses, e.g. 127.0.0.1"


def owner_of(port: int) -> str | None:
    """Name and pid of the process that listens on a TCP port, if the system shows it."""
    try:
        listening = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    for connection in listening:
        here = getattr(connection.laddr, "port", None) == port
        if here and connection.status == psutil.CONN_LISTEN and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return None
