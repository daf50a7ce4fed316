"""Which server has which piece: the busiest link is done as early as possible, and pieces are spread evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from dynamix_ps.comm.byteps.placement import (
    link_traffic,
    piece_bytes,
    server_shares,
    servers_in_turn,
    shares_without,
    window_bytes,
)

KIB = 1024


def busiest_link_s(
    shares: Sequence[float] | NDArray[np.float64],
    workers: Sequence[str],
    servers: Sequence[str],
    rates: dict[str, float],
    one_push: bool = False,
) -> float:
    """Time for 1 byte per worker, counted message by message."""
    senders = sorted(set(workers)) if one_push else workers
    sent = dict.fromkeys(rates, 0.0)
    for worker in senders:
        for server, share in zip(servers, shares, strict=True):
            if worker != server:
                sent[worker] += share
                sent[server] += share  # its answer; a host receives as much as it sends
    return max(sent[host] / rate for host, rate in rates.items())


def best_time_s(workers: Sequence[str], servers: Sequence[str], rates: dict[str, float], one_push: bool) -> float:
    """The same minimum by linear programming over the shares and the time."""
    senders = sorted(set(workers)) if one_push else list(workers)
    limits = []
    for host, rate in rates.items():
        away = [sum(worker != host for worker in senders) if server == host else 0 for server in servers]
        own = senders.count(host)
        pushed = [0 if server == host else own for server in servers]
        limits.append([a + p for a, p in zip(away, pushed, strict=True)] + [-rate])
    found = linprog(
        [0] * len(servers) + [1], limits, [0] * len(limits), [[1] * len(servers) + [0]], [1], bounds=(0, None)
    )
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("workers", range(2, 9))
@pytest.mark.parametrize("extra", range(7))
def test_equal_links_reach_the_optimum_of_byteps(workers: int, extra: int) -> None:
    hosts = [f"w{i}" for i in range(workers)]
    servers = hosts + [f"s{i}" for i in range(extra)]
    rates = dict.fromkeys(servers, 25e6)
    limit = 2 * workers * (workers - 1) / ((workers**2 + extra * workers - 2 * extra) * 25e6)
    if extra > workers:  # the formula holds up to k = n, where servers on worker hosts have nothing left to do
        limit = 1 / 25e6
    assert busiest_link_s(server_shares(hosts, servers, rates), hosts, servers, rates) == pytest.approx(limit)


@given(st.data())
def test_traffic_of_a_link_is_what_its_messages_add_up_to(data: st.DataObject) -> None:
    pushes = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=5).filter(any))
    hosts = [f"h{number}" for number in range(len(pushes))]
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=len(hosts), max_size=len(hosts))), dtype=float)
    shares, workers = weights / weights.sum(), [h for h, w in zip(hosts, pushes, strict=True) for _ in range(w)]
    busiest = link_traffic(np.array(pushes), shares, sum(pushes)).max()
    assert busiest == pytest.approx(busiest_link_s(shares, workers, hosts, dict.fromkeys(hosts, 1.0)))


def test_servers_on_worker_hosts_alone_share_equally_and_take_the_time_of_a_ring() -> None:
    hosts = ["a", "b", "c"]
    rates = dict.fromkeys(hosts, 1.0)
    shares = server_shares(hosts, hosts, rates)
    assert shares == pytest.approx([1 / 3] * 3)
    assert busiest_link_s(shares, hosts, hosts, rates) == pytest.approx(2 * (3 - 1) / 3)


def test_a_host_behind_a_slow_link_serves_nothing() -> None:
    hosts = ["a", "b", "c"]
    rates = {"a": 100.0, "b": 25.0, "c": 100.0}
    shares = server_shares(hosts, hosts, rates)
    assert shares == pytest.approx([0.5, 0, 0.5])
    assert busiest_link_s(shares, hosts, hosts, rates) == pytest.approx(1 / 25)


def test_what_is_free_beside_a_slow_link_is_shared_out_by_rate() -> None:
    hosts = ["a", "b", "c", "d"]
    shares = server_shares(hosts, hosts, {"a": 8.0, "b": 4.0, "c": 1.0, "d": 8.0})
    assert shares[2] == 0
    assert shares[0] == shares[3] > shares[1] > 0


def test_rates_that_differ_by_less_than_a_fifth_count_as_equal() -> None:
    hosts = ["a", "b", "c"]
    assert server_shares(hosts, hosts, {"a": 100, "b": 81, "c": 93}) == pytest.approx([1 / 3] * 3)
    assert server_shares(hosts, hosts, {"a": 100, "b": 79, "c": 93})[1] < 0.3


@pytest.mark.parametrize("workers", [["a"], ["a"] * 4])
def test_on_one_host_servers_share_equally_and_no_rate_is_needed(workers: list[str]) -> None:
    assert server_shares(workers, ["a", "a"], {}).tolist() == [0.5, 0.5]


def test_servers_of_one_host_share_its_part_equally() -> None:
    workers, servers = ["a", "b", "c"], ["a", "a", "b", "c"]
    shares = server_shares(workers, servers, dict.fromkeys("abc", 1.0))
    assert shares == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])


def test_two_workers_lose_nothing_by_any_split_and_share_equally() -> None:
    hosts = ["a", "b"]
    for rates in ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.25}):
        shares = server_shares(hosts, hosts, rates)
        assert shares == pytest.approx([0.5, 0.5])
        assert busiest_link_s(shares, hosts, hosts, rates) == pytest.approx(1 / min(rates.values()))


def test_the_host_of_most_workers_sums_all() -> None:
    workers, servers = ["a", "a", "a", "b"], ["a", "b"]
    assert server_shares(workers, servers, {"a": 1.0, "b": 1.0}).tolist() == [1, 0]
    assert server_shares(workers, servers, {"a": 1.0, "b": 1.0}, one_push_per_host=True).tolist() == [0.5, 0.5]


hosts = st.sampled_from(["a", "b", "c", "d", "e"])


@given(
    st.lists(hosts, min_size=1, max_size=8),
    st.lists(hosts, min_size=1, max_size=8),
    st.lists(st.integers(0, 6), min_size=5, max_size=5),
    st.booleans(),
)
def test_no_split_is_faster(workers: list[str], servers: list[str], powers: list[int], one_push: bool) -> None:
    # powers of 2: no two different rates count as equal
    rates = {host: 2.0**power for host, power in zip("abcde", powers, strict=True) if host in {*workers, *servers}}
    shares = server_shares(workers, servers, rates, one_push)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    time_s = busiest_link_s(shares, workers, servers, rates, one_push)
    assert time_s == pytest.approx(best_time_s(workers, servers, rates, one_push), abs=1e-9)


@pytest.mark.parametrize("rate", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_an_unusable_rate_is_named(rate: float | None) -> None:
    rates = {"10.0.0.1": 1.0} | ({} if rate is None else {"10.0.0.2": rate})
    with pytest.raises(ValueError, match=r"the rate of 10\.0\.0\.2 is (None|0\.0|-1\.0|nan|inf), expected a positive"):
        server_shares(["10.0.0.1"], ["10.0.0.2"], rates)
    with pytest.raises(ValueError, match="got 1 workers and 0 servers"):
        server_shares(["10.0.0.1"], [], rates)


def test_pieces_go_round_equal_servers() -> None:
    assert servers_in_turn(np.full(3, 1 / 3)).tolist() == [0, 1, 2]


def test_unequal_shares_interleave() -> None:
    assert servers_in_turn(np.array([0.5, 0.25, 0.25])).tolist() == [0, 1, 2, 0]
    assert servers_in_turn(np.array([0.5, 0.0, 0.5])).tolist() == [0, 2]
    assert servers_in_turn(np.array([1.0])).tolist() == [0]
    assert servers_in_turn(np.array([3.0, 1.0])).tolist() == [0, 0, 1, 0], "shares need not add to 1"


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_every_run_of_pieces_is_spread_by_the_shares(weights: list[int], start: int, pieces: int) -> None:
    shares = np.array(weights) / sum(weights)
    servers = servers_in_turn(shares)
    assert servers.dtype == np.int32
    placed = servers[np.arange(start, start + pieces) % len(servers)]
    counts = np.bincount(placed, minlength=len(shares))
    assert np.all(np.abs(counts - pieces * shares) < 2 + pieces / (128 * len(shares)))
    assert not counts[shares == 0].any()


def test_the_others_take_over_what_lost_servers_had_in_proportion() -> None:
    shares = np.array([0.5, 0.25, 0.25])
    assert servers_in_turn(shares_without(shares, [0])).tolist() == [1, 2]
    assert servers_in_turn(shares_without(shares, [2])).tolist() == [0, 1, 0]
    assert servers_in_turn(shares_without(shares, [0, 2])).tolist() == [1]
    assert shares_without(shares, []).tolist() == shares.tolist()


def test_servers_without_a_share_serve_when_no_other_is_left() -> None:
    shares = np.array([1.0, 0.0, 0.0])
    assert servers_in_turn(shares_without(shares, [1])).tolist() == [0], "a slow link serves nothing while others can"
    assert servers_in_turn(shares_without(shares, [0])).tolist() == [1, 2]
    with pytest.raises(ValueError, match="all 3 servers are lost"):
        shares_without(shares, [0, 1, 2])


@given(st.integers(0, 1 << 33), st.floats(1e5, 1e11), st.integers(1, 64))
def test_pieces_are_equal_and_within_their_limits(buffer: int, rate: float, servers: int) -> None:
    size = piece_bytes(buffer, rate, servers)
    assert size % 64 == 0
    assert 0 < size <= 256 * KIB
    assert size >= min(buffer, 8 * KIB)
    if buffer <= 8 * KIB:
        assert size >= buffer


def test_a_piece_keeps_a_link_busy_for_less_than_a_millisecond() -> None:
    buffer = 64 << 20
    assert piece_bytes(buffer, 6.25e6, 2) == 8 * KIB
    assert piece_bytes(buffer, 25e6, 2) == pytest.approx(16_250, rel=0.01)
    assert piece_bytes(buffer, 1.25e9, 2) == 256 * KIB


def test_a_window_is_four_pieces_and_what_the_round_trip_holds() -> None:
    assert window_bytes(25e6, 0.0) == 65_000
    assert window_bytes(25e6, 0.1) == 65_000 + 2_500_000


def test_a_buffer_gives_each_server_several_pieces_and_equally_many() -> None:
    for buffer, servers, each in (
        (1 << 20, 1, 4),
        (1 << 20, 3, 4),
        (1 << 20, 4, 4),
        (1 << 20, 6, 4),
        (16 << 20, 3, 22),
    ):
        size = piece_bytes(buffer, 1.25e9, servers)
        assert -(-buffer // size) == servers * each
    assert piece_bytes(30 * KIB, 25e6, 8) == 10 * KIB  # three pieces: fewer than servers
