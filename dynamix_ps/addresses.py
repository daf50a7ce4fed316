"""Host and port as one text."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address, as in URLs and for gRPC."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
