"""Settings of both ends of the connection."""

from __future__ import annotations

Options = list[tuple[str, int]]


def message_limit_bytes(n_workers: int) -> int:
    """Largest message: 256 KiB for a report with the most connections there may be, and room for what grows with
    the number of workers (plans, peers)."""
    return 262_144 + 64 * n_workers


def client_options(n_workers: int) -> Options:
    """One connection of our own, never through an HTTP proxy, that is not put off after a failure."""
    return [
        *_limits(n_workers),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def server_options(n_workers: int) -> Options:
    """The address is ours alone: without this, two servers could share a port and each get half of the calls."""
    return [*_limits(n_workers), ("grpc.so_reuseport", 0)]


def _limits(n_workers: int) -> Options:
    limit = message_limit_bytes(n_workers)
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
