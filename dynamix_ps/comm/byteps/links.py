"""Rates of the hosts' links and the round trip between them, from echoes between workers and servers at the start.

Pure except for `measure_links`, which calls the echo and the sum that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

_PARTNERS = 3  # pairs per host: enough that one of them is not slower than the host itself
_ROUND_TRIPS = 5
_MOST_REPEATS = 6
_AGREEMENT = 1.1  # ratio of two times that count as equal
_SMALLEST_ECHO_BYTES = 64 * 1024
_LARGEST_ECHO_BYTES = 16 * 1024 * 1024
_LONG_ECHO_S = 0.02  # then half of the echo exceeds the burst of a token bucket, usually 4 ms of its rate
_LONG_ECHO_ROUND_TRIPS = 2  # and TCP's first round trips, in which it sends little, do not count much


@dataclass(frozen=True, slots=True)
class Links:
    """What placement needs to know of the network."""

    rate_bytes_per_s: Mapping[str, float]  # of each host, one way
    round_trip_s: float


def measure_links(
    rank: int,
    worker_hosts: Sequence[str],
    server_hosts: Sequence[str],
    echo: Callable[[int, int], float],
    total: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Links:
    """Measure the links of all hosts. Collective: every worker calls it.

    Args:
        rank: of this worker.
        worker_hosts: address of each worker's host.
        server_hosts: address of each server's host.
        echo: sends server `echo(server, bytes)` so many bytes, which it sends back when it has all; returns seconds.
        total: sum of an array over all workers.

    Raises:
        ValueError: there is only one host.
    """
    rates, round_trips_s = np.zeros((2, len(worker_hosts), len(server_hosts)))
    for pairs in rounds_of_pairs(worker_hosts, server_hosts):
        total(np.zeros(1))  # all begin a round together: two echoes on one link would halve its rate
        for worker, server in pairs:
            if worker == rank:
                rates[worker, server], round_trips_s[worker, server] = measure_pair(partial(echo, server))
    rates, round_trips_s = total(np.stack([rates, round_trips_s]))
    return links_of_hosts(rates, round_trips_s, worker_hosts, server_hosts)


def rounds_of_pairs(worker_hosts: Sequence[str], server_hosts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Which (worker, server) measure at the same time. In a round each host takes part at most once.

    A round-robin tournament of the hosts (circle method); one worker measures for its host. A pair is left out if both
    hosts have met three others already.
    """
    hosts = sorted({*worker_hosts, *server_hosts})
    if len(hosts) % 2:
        hosts.append("")  # whoever meets it rests
    circle = len(hosts) - 1
    met: Counter[str] = Counter()
    rounds = []
    for turn in range(circle):
        meetings = [(hosts[turn], hosts[-1])]
        meetings += [(hosts[(turn + i) % circle], hosts[(turn - i) % circle]) for i in range(1, len(hosts) // 2)]
        pairs = []
        for meeting in meetings:
            for one, other in (meeting, meeting[::-1]):
                if one in worker_hosts and other in server_hosts:
                    if min(met[one], met[other]) < _PARTNERS:
                        pairs.append((worker_hosts.index(one), server_hosts.index(other)))
                        met.update((one, other))
                    break
        if pairs:
            rounds.append(pairs)
    return rounds


def measure_pair(echo: Callable[[int], float]) -> tuple[float, float]:
    """(bytes per second one way, round trip in seconds) between a worker and a server.

    The rate is the slope between two sizes of echoes, so that neither the round trip nor the burst of a token bucket
    counts. Sizes double until an echo lasts long enough.

    Args:
        echo: sends so many bytes, receives as many when the server has all, and returns the seconds.
    """
    round_trip_s = min(echo(1) for _ in range(_ROUND_TRIPS))
    long_s = max(_LONG_ECHO_S, _LONG_ECHO_ROUND_TRIPS * round_trip_s)
    size = _SMALLEST_ECHO_BYTES
    shorter_s, longer_s = _echo_s(echo, size), _echo_s(echo, 2 * size)
    while longer_s - round_trip_s < long_s and 2 * size < _LARGEST_ECHO_BYTES:
        size *= 2
        shorter_s, longer_s = longer_s, _echo_s(echo, 2 * size)
    # After a burst the second half of an echo takes longer than the first. If not, the shorter echo was delayed.
    second_half_s = max(longer_s - shorter_s, (longer_s - round_trip_s) / 2, longer_s / 4)
    return 2 * size / second_half_s, round_trip_s


def _echo_s(echo: Callable[[int], float], size_bytes: int) -> float:
    """The shortest of several echoes. A busy machine delays some: there are more until the two shortest agree."""
    times_s = [echo(size_bytes), echo(size_bytes)]
    while len(times_s) < _MOST_REPEATS and sorted(times_s)[1] > _AGREEMENT * min(times_s):
        times_s.append(echo(size_bytes))
    return min(times_s)


def links_of_hosts(
    rates_bytes_per_s: NDArray[np.float64],
    round_trips_s: NDArray[np.float64],
    worker_hosts: Sequence[str],
    server_hosts: Sequence[str],
) -> Links:
    """Rate of each host from the pairs that were measured.

    A pair is about as fast as the slower of its hosts, so a host is as fast as the fastest of its pairs. The round trip
    is the median of all pairs.

    Args:
        rates_bytes_per_s: (W, S) of the pairs, 0 where none was measured.
        round_trips_s: (W, S).

    Raises:
        ValueError: a host has no pair.
    """
    rate_of: dict[str, float] = {}
    for worker, server in np.argwhere(rates_bytes_per_s > 0):
        for host in (worker_hosts[worker], server_hosts[server]):
            rate_of[host] = max(rate_of.get(host, 0.0), float(rates_bytes_per_s[worker, server]))
    if missing := sorted({*worker_hosts, *server_hosts} - rate_of.keys()):
        raise ValueError(f"links: no link of {', '.join(missing)} was measured, expected two hosts or more")
    return Links(rate_of, float(np.median(round_trips_s[rates_bytes_per_s > 0])))
