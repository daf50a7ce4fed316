"""Host and port as one text, and whether a port can be had there."""

from __future__ import annotations

import socket


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address, as in URLs and for gRPC."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(address: str) -> tuple[str, str]:
    """Host, without brackets, and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def bind_error(host: str, port: int) -> OSError | None:
    """Why a port cannot be bound; none when it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ and gRPC do
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
