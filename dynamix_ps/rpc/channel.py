"""Settings of both ends of the connection."""

from __future__ import annotations

Options = list[tuple[str, int]]


def message_limit_bytes(n_workers: int) -> int:
    """Largest message: 256 KiB for a report with the largest number of connections, and 64 bytes per worker for plans
    and peers."""
    return 262_144 + 64 * n_workers


def client_options(n_workers: int) -> Options:
    """A connection that is shared with no other channel, uses no HTTP proxy, and reconnects within a second."""
    return [
        *_limits(n_workers),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def server_options(n_workers: int) -> Options:
    """One server per port: with so_reuseport, two servers could share a port and each get half of the calls."""
    return [*_limits(n_workers), ("grpc.so_reuseport", 0)]


def _limits(n_workers: int) -> Options:
    limit = message_limit_bytes(n_workers)
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
