"""Rates of links from echoes: who measures when, and what the times mean."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.links import Links, links_of_hosts, measure_links, rounds_of_pairs
from dynamix_ps.comm.link_rate import measure_pair


def link(rate: float, round_trip_s: float = 1e-3, burst_s: float = 0.0) -> Callable[[int], float]:
    """An echo over a link with a full token bucket at the start of each direction."""

    def echo(size_bytes: int) -> float:
        one_way_s = max(0.0, size_bytes - burst_s * rate) / rate
        return round_trip_s + 2 * one_way_s

    return echo


@pytest.mark.parametrize("rate", [1e5, 50e6 / 8, 200e6 / 8, 1e9 / 8, 1e10 / 8])
@pytest.mark.parametrize("round_trip_s", [1e-4, 0.03])
def test_neither_the_burst_nor_the_round_trip_counts(rate: float, round_trip_s: float) -> None:
    measured, trip_s = measure_pair(link(rate, round_trip_s, burst_s=0.004))
    assert measured == pytest.approx(rate, rel=0.01)
    assert trip_s == pytest.approx(round_trip_s)


def test_delays_of_single_echoes_do_not_count() -> None:
    echo, seen = link(50e6 / 8), Counter[int]()

    def late_at_first(size_bytes: int) -> float:
        seen[size_bytes] += 1
        return echo(size_bytes) + max(0.0, 0.03 - 0.01 * seen[size_bytes])

    assert measure_pair(late_at_first) == pytest.approx((50e6 / 8, 1e-3), rel=0.01)


def test_a_delayed_echo_does_not_make_a_link_look_much_faster() -> None:
    echo = link(50e6 / 8)
    rate, _ = measure_pair(lambda size: echo(size) + (0.008 if size == 64 * 1024 else 0))
    assert rate == pytest.approx(50e6 / 8, rel=0.01)


def test_an_echo_that_seems_to_take_no_time_gives_a_finite_rate() -> None:
    rate, _ = measure_pair(lambda size: 1e-3)
    assert 0 < rate < float("inf")


def test_the_time_on_a_slow_link_is_limited() -> None:
    spent_s = 0.0
    echo = link(50e6 / 8, burst_s=0.004)

    def counted(size_bytes: int) -> float:
        nonlocal spent_s
        time_s = echo(size_bytes)
        spent_s += time_s
        return time_s

    measure_pair(counted)
    assert spent_s < 0.12


def hosts_of(pairs: list[tuple[int, int]], workers: list[str], servers: list[str]) -> list[str]:
    return [host for worker, server in pairs for host in (workers[worker], servers[server])]


hosts = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=12)


@given(hosts, hosts)
def test_no_host_is_in_two_pairs_of_a_round_and_every_host_is_measured(workers: list[str], servers: list[str]) -> None:
    rounds = rounds_of_pairs(workers, servers)
    for pairs in rounds:
        busy = hosts_of(pairs, workers, servers)
        assert len(busy) == len(set(busy))
    if len({*workers, *servers}) > 1:
        assert {host for pairs in rounds for host in hosts_of(pairs, workers, servers)} == {*workers, *servers}
    else:
        assert rounds == []


def test_each_pair_of_a_few_hosts_is_measured_once() -> None:
    names = ["a", "b", "c", "d"]
    rounds = rounds_of_pairs(names, names)
    assert [len(pairs) for pairs in rounds] == [2, 2, 2]
    assert len({frozenset(pair) for pairs in rounds for pair in pairs}) == 6


def test_of_many_hosts_each_meets_three() -> None:
    names = [str(number) for number in range(32)]
    assert [len(pairs) for pairs in rounds_of_pairs(names, names)] == [16] * 3
    lonely = rounds_of_pairs(names, ["server"])
    assert sorted(lonely) == [[(worker, 0)] for worker in range(32)]


def test_a_host_is_as_fast_as_its_fastest_pair() -> None:
    rates = np.array([[0, 25.0, 100.0], [25.0, 0, 25.5], [98.0, 24.0, 0]])
    round_trips_s = np.where(rates > 0, 2e-3, 0.0)
    round_trips_s[0, 1] = 9.0
    links = links_of_hosts(rates, round_trips_s, ["a", "b", "c"], ["a", "b", "c"])
    assert links.rate_bytes_per_s == {"a": 100.0, "b": 25.5, "c": 100.0}
    assert links.round_trip_s == 2e-3


def test_a_host_that_was_not_measured_is_named() -> None:
    with pytest.raises(ValueError, match="no link of b was measured"):
        links_of_hosts(np.array([[5.0, 0.0]]), np.ones((1, 2)), ["a"], ["c", "b"])


def test_all_workers_learn_the_same_links() -> None:
    workers, servers = ["a", "b", "c", "c"], ["a", "b", "c", "d"]
    own = {"a": 2e7, "b": 5e6, "c": 2e7, "d": 4e7}
    gate = threading.Barrier(len(workers))
    busy: set[str] = set()
    sent: dict[int, NDArray[np.float64]] = {}

    def run(rank: int) -> None:
        def echo(server: int, size_bytes: int) -> float:
            pair = {workers[rank], servers[server]}
            assert not busy & pair
            busy.update(pair)
            busy.difference_update(pair)
            return link(min(own[workers[rank]], own[servers[server]]))(size_bytes)

        def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
            sent[rank] = values
            gate.wait(10)
            summed: NDArray[np.float64] = np.sum([sent[other] for other in range(len(workers))], axis=0)
            gate.wait(10)
            return summed

        try:
            found[rank] = measure_links(rank, workers, servers, echo, total)
        except BaseException:
            gate.abort()
            raise

    found: dict[int, Links] = {}
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == len(workers)
    assert all(links == found[0] for links in found.values())
    assert found[0].rate_bytes_per_s == pytest.approx({"a": 2e7, "b": 5e6, "c": 2e7, "d": 2e7}, rel=0.01)
