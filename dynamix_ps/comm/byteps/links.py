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

from dynamix_ps.comm.link_rate import measure_pair

_PARTNERS = 3  # pairs per host: enough that one of them is not slower than the host itself


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
