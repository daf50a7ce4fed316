"""The address under which other hosts reach this one: the address of the interface that leads to them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from dynamix_ps.addresses import bind_error
from dynamix_ps.errors import EnvironmentNotReady

_ANY_PORT = 9  # nothing is sent


def own_address(wanted: str, peers: Sequence[str], host: str) -> str:
    """The address of this host for the others.

    Args:
        wanted: the address in the cluster file. For a name, the route to the other hosts decides.
        peers: addresses or names of the other hosts; empty: only roles on this host use the address.
        host: name of this host, for messages.

    Raises:
        EnvironmentNotReady: this host does not have the address, or has no route to the others.
    """
    if not peers:
        return wanted
    try:
        ipaddress.ip_address(wanted)
    except ValueError:
        return _by_route(peers, host)
    if bind_error(wanted, 0) is not None:
        raise EnvironmentNotReady(
            f"cluster.hosts.{host}: {wanted} is no address of that host, which is {socket.gethostname()} and has "
            f"{_by_route(peers, host)} towards {peers[0]}; correct its address"
        )
    return wanted


def _by_route(peers: Sequence[str], host: str) -> str:
    problems = []
    for peer in peers:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as asking:
                asking.connect(address)
                found = str(asking.getsockname()[0])
        except OSError as error:
            problems.append(f"{peer}: {error.strerror or error}")
            continue
        if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
            return found
        problems.append(f"{peer} is {address[0]}, which is this host itself")
    raise EnvironmentNotReady(
        f"cluster.hosts.{host}: it has no route to the other hosts ({'; '.join(problems)}); "
        "give every host the address under which the others reach it"
    )
