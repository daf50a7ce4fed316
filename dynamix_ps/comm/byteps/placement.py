"""Which server has which piece of a buffer. Pure.

All workers must place pieces alike, or sums go wrong. Let one worker compute `server_shares` and send the result to the
others: sums of floats may differ in the last bit between processors. `servers_in_turn`, `shares_without`
and `piece_bytes` give the same result everywhere for the same arguments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion

_LIKE_RATE = 0.8  # rates above this part of the fastest one of their group count as equal: measuring scatters

_ROUNDS = 128  # times the number of servers: pieces after which the sequence of servers repeats, at the latest

_SMALLEST_PIECE_BYTES = 8 * 1024
_LARGEST_PIECE_BYTES = 256 * 1024
_PIECE_S = 0.65e-3  # of a piece on a link; chosen by measurement, see piece_bytes
_WINDOW_PIECES = 4
_PIECES_PER_SERVER = 4  # so that servers receive, sum and answer at the same time
_ALIGNMENT_BYTES = 64  # a cache line; no value of any type is cut in two


def server_shares(
    worker_hosts: Sequence[str],
    server_hosts: Sequence[str],
    rate_bytes_per_s: Mapping[str, float],
    one_push_per_host: bool = False,
) -> NDArray[np.float64]:
    """Part of all bytes that each server should sum, so that the busiest link is done as early as possible.

    Links are full duplex, and traffic within a host is free. Of n pushes of M bytes, w come from a host whose servers
    have the share s. The host then sends, and receives, M (w (1 - s) + s (n - w)) = M (w + s (n - 2 w)) bytes. The
    shares follow from the smallest time T within which all links can carry their traffic (water-filling). With a server
    on each of n worker hosts and k extra servers on links of one rate, T = 2 n (n - 1) M / ((n^2 + k n - 2 k) rate), as
    in BytePS (Jiang et al., OSDI 2020, section 4.1). What is free within T is shared out in proportion.

    Args:
        worker_hosts: address of each worker's host.
        server_hosts: address of each server's host. Servers of one host share equally.
        rate_bytes_per_s: of each host's link, one way. Not read if there is only one host.
        one_push_per_host: a host's workers sum among themselves first and push once.

    Returns:
        (S,) parts that add to 1.

    Raises:
        ValueError: there is no worker or no server, or a rate is missing or not positive and finite.
    """
    if not worker_hosts or not server_hosts:
        raise ValueError(
            f"server_shares: got {len(worker_hosts)} workers and {len(server_hosts)} servers, expected some"
        )
    hosts = sorted({*worker_hosts, *server_hosts})
    servers = np.array([server_hosts.count(host) for host in hosts])
    if len(hosts) == 1:
        return np.full(len(server_hosts), 1 / len(server_hosts))
    pushes = np.array([worker_hosts.count(host) for host in hosts])
    if one_push_per_host:
        pushes = np.minimum(pushes, 1)
    rates = _grouped(np.array([_rate(host, rate_bytes_per_s) for host in hosts]))
    of_host = dict(zip(hosts, _host_shares(pushes, servers > 0, rates) / np.maximum(servers, 1), strict=True))
    return np.array([of_host[host] for host in server_hosts])


def link_traffic(
    pushes: float | NDArray[np.number[Any]], shares: NDArray[np.floating[Any]], total: float | np.number[Any]
) -> NDArray[np.floating[Any]]:
    """Bytes that each host sends, and receives, for every byte of the sum: w + s (n - 2 w), see `server_shares`.

    Args:
        pushes: from each host (w).
        shares: of each host's servers (s).
        total: pushes from all hosts (n).
    """
    return np.asarray(pushes + shares * (total - 2 * pushes))


def _host_shares(
    pushes: NDArray[np.int64], may_serve: NDArray[np.bool_], rates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(hosts,) share of the servers of each host. Times are for M = 1 byte."""
    total = pushes.sum()
    growth = total - 2 * pushes  # bytes that a link carries more if the host's share grows from 0 to 1
    rising, falling = may_serve & (growth > 0), may_serve & (growth < 0)

    # No link is done before this, whatever the shares are. At most one host can be `falling`: it sums all by itself.
    time = (np.where(falling, total - pushes, pushes) / rates).max()
    if not (may_serve & (growth <= 0)).any():  # then the largest shares must add to 1; they are (T rate - w) / growth
        slope = np.divide(rates, growth, out=np.zeros(len(rates)), where=rising)
        offset = np.divide(pushes, growth, out=np.zeros(len(rates)), where=rising)
        time = max(time, (1 + offset.sum()) / slope.sum())

    spare = time * rates - pushes
    reached = np.divide(spare, growth, out=np.zeros(len(rates)), where=rising | falling)
    smallest = np.where(falling, np.clip(reached, 0, 1), 0.0)
    largest = np.where(rising, np.maximum(reached, 0), np.where(may_serve, 1.0, 0.0))
    room = largest - smallest
    if room.sum() > 0:
        smallest = smallest + room * (1 - smallest.sum()) / room.sum()
    shares: NDArray[np.float64] = smallest / smallest.sum()
    return shares


def _rate(host: str, rate_bytes_per_s: Mapping[str, float]) -> float:
    rate = rate_bytes_per_s.get(host)
    if rate is None or not 0 < rate < float("inf"):
        raise ValueError(f"server_shares: the rate of {host} is {rate}, expected a positive number of bytes per second")
    return rate


def _grouped(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rates with the mean of its group in place of each. A group reaches from its fastest link down to 0.8 of it."""
    grouped, left = rates.copy(), np.ones(len(rates), dtype=bool)
    while left.any():
        group = left & (rates > _LIKE_RATE * rates[left].max())
        grouped[group] = rates[group].mean()
        left &= ~group
    return grouped


def servers_in_turn(shares: NDArray[np.float64]) -> NDArray[np.int32]:
    """Servers of neighbouring pieces, so that any run of them is spread over the servers by their shares.

    Piece p of buffer n is at server number n + p of these, counted from the beginning again behind the last one: small
    buffers do not all begin at one server.

    Args:
        shares: (S,) parts, at least 0; all 0 means equal parts. Rounded to 1/(128 S) of their sum.

    Returns:
        (length,) numbers of servers.
    """
    weights = apportion(_ROUNDS * len(shares), shares.tolist())
    divisor = math.gcd(*weights)
    return _weighted_round_robin(tuple(weight // divisor for weight in weights))


def shares_without(shares: NDArray[np.float64], lost: Collection[int]) -> NDArray[np.float64]:
    """Shares after servers are lost: the others take over in proportion to their own shares.

    The function computes no share anew: all workers must find the same bits, and cannot ask each other.

    Args:
        shares: (S,) of all servers, at least 0.
        lost: numbers of servers.

    Returns:
        (S,) that do not add to 1, see `servers_in_turn`: 0 for lost servers. If no other server has a share, all
        others have the same.

    Raises:
        ValueError: no server is left.
    """
    left = np.array([server not in lost for server in range(len(shares))])
    if not left.any():
        raise ValueError(f"shares_without: all {len(shares)} servers are lost, expected one that is left")
    kept: NDArray[np.float64] = np.where(left, shares, 0.0)
    return kept if kept.any() else left.astype(np.float64)


@functools.cache
def _weighted_round_robin(weights: tuple[int, ...]) -> NDArray[np.int32]:
    """(sum of weights,) servers, each as often as its weight says: the smooth round robin of nginx.

    In each step every server's credit grows by its weight. The one with the largest credit is next, ties go to the
    lower number, and pays the sum of all weights.
    """
    growth, total = np.array(weights), sum(weights)
    credit = np.zeros(len(weights), dtype=np.int64)
    cycle = np.empty(total, dtype=np.int32)
    for step in range(total):
        credit += growth
        cycle[step] = chosen = credit.argmax()
        credit[chosen] -= total
    return cycle


def piece_bytes(buffer_bytes: int, rate_bytes_per_s: float, servers: int) -> int:
    """Size of the equal pieces of a buffer, a multiple of 64 bytes; the last piece may be shorter.

    Small pieces leave links idle for less time at the start and at the end, and fit into the queues of switches when
    several workers send to one server; large ones cost less processor time per byte. On links of 50 and 200 Mbit/s
    pieces of 0.65 ms were the best of those tried. A buffer gives each server several pieces, and equally many if it
    can. Pieces have 8 to 256 KiB; a smaller buffer is one piece.

    Args:
        buffer_bytes: size of the buffer.
        rate_bytes_per_s: of a link between a worker and a server.
        servers: how many take part, those with share 0 left out.
    """
    wanted = min(rate_bytes_per_s * _PIECE_S, buffer_bytes / (_PIECES_PER_SERVER * servers))
    wanted = min(max(wanted, _SMALLEST_PIECE_BYTES), _LARGEST_PIECE_BYTES)
    most, least = buffer_bytes // _SMALLEST_PIECE_BYTES, -(-buffer_bytes // _LARGEST_PIECE_BYTES)
    pieces = max(1, least, min(most, round(buffer_bytes / wanted)))
    down = pieces // servers * servers
    pieces = next((even for even in (down, down + servers) if max(1, least) <= even <= most), pieces)
    lines = -(-buffer_bytes // (pieces * _ALIGNMENT_BYTES))
    return max(1, lines) * _ALIGNMENT_BYTES


def window_bytes(rate_bytes_per_s: float, round_trip_s: float) -> int:
    """How much a worker may have on its way to one server without an answer.

    It is just enough to keep the link busy. With more, workers that are ahead fill the queue in front of a server,
    others lose packets, and the sums that all wait for come late.

    Args:
        rate_bytes_per_s: of a link between a worker and a server.
        round_trip_s: between them.
    """
    return round((_WINDOW_PIECES * _PIECE_S + round_trip_s) * rate_bytes_per_s)
