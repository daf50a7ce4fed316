"""Settings of both ends of the connection."""

from __future__ import annotations

from dynamix_ps.open_files import raise_open_files

Options = list[tuple[str, int]]

IDLE_S = 20  # chosen by us, like the other limits
STREAMS_PER_CONNECTION = 16  # a worker uses two: one for plans, one for the other calls
METADATA_BYTES = 16_384  # credentials take less than 1,000
SPARE_CONNECTIONS = 4096  # so many strangers at a time do not keep a worker out; each takes up some 20 kB
SPARE_FILES = 256
SPARE_CALLS = 4096  # of strangers, that wait at a time


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
    """What anybody can take up of the server, with or without the token.

    A connection that speaks no HTTP/2, or on which no call is open, is closed after IDLE_S; workers keep a stream of
    plans open, and connect again otherwise. A compressed message is refused, because a small one can become large.

    One server per port: with so_reuseport, two servers could share a port and each get half of the calls.
    """
    return [
        *_limits(n_workers),
        ("grpc.max_allowed_incoming_connections", connection_limit(n_workers)),
        ("grpc.server.max_pending_requests", waiting_limit(n_workers)),  # above it, some are cancelled
        ("grpc.server.max_pending_requests_hard_limit", waiting_limit(n_workers)),  # above it, all are
        ("grpc.server_handshake_timeout_ms", 1000 * IDLE_S),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_S),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.max_metadata_size", METADATA_BYTES // 2),  # above it, calls may be refused; above the next, they are
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none but "not compressed"
        ("grpc.so_reuseport", 0),
    ]


def connection_limit(n_workers: int) -> int:
    """Connections that the server accepts at a time: up to four per worker and SPARE_CONNECTIONS, fewer where the limit
    on open files does not permit so many. SPARE_FILES of it stay free for the journal and the policy's file."""
    wanted = SPARE_CONNECTIONS + 4 * n_workers
    return max(1, raise_open_files(wanted + SPARE_FILES) - SPARE_FILES)


def waiting_limit(n_workers: int) -> int:
    """Calls that wait at a time until the event loop takes them: up to four per worker and SPARE_CALLS.

    Without a limit of ours, gRPC cancels calls at random from 1,000 on: fewer than a large cluster makes at the end of
    a window, while the arbitrator decides.
    """
    return SPARE_CALLS + 4 * n_workers


def session_limit(n_workers: int) -> int:
    """Sessions with the token that the server remembers: up to four per worker, and some of roles and commands."""
    return 1024 + 4 * n_workers


def _limits(n_workers: int) -> Options:
    limit = message_limit_bytes(n_workers)
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
