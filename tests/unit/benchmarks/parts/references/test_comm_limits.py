"""Limits of networks against the published formulas, and figures from made-up blocks."""

from __future__ import annotations

import pytest

from benchmarks.parts.references.comm_limits import CASES, PAYLOAD, Case, judge, summary

MB = 1_000_000


def case(*rates_mbit: float, extra: int = 0, extra_mbit: float = 100.0) -> Case:
    return Case(rates_mbit, extra, extra_mbit, ratio_bar=1.0)


@pytest.mark.parametrize(("n", "k"), [(2, 0), (2, 2), (3, 0), (3, 3), (6, 1), (6, 6), (17, 4)])
def test_equal_links_have_the_limit_of_byteps(n: int, k: int) -> None:
    published_s = 2 * n * (n - 1) * 8 * MB / ((n**2 + k * n - 2 * k) * 1e8 * PAYLOAD)
    assert case(*[100.0] * n, extra=k).limit_ms(MB) == pytest.approx(1e3 * published_s)


def test_more_servers_than_workers_gain_nothing() -> None:
    """A worker must send its whole buffer."""
    assert case(100, 100, 100, extra=9).limit_ms(MB) == case(100, 100, 100, extra=3).limit_ms(MB)


def test_a_slow_link_only_carries_its_own_buffer() -> None:
    """Its server has nothing to sum: the two others share the buffer, and their links are done earlier."""
    assert case(200, 200, 50).limit_ms(MB) == pytest.approx(8 * MB / (50e6 * PAYLOAD) * 1e3)


def test_a_somewhat_slower_link_serves_less() -> None:
    """Shares that keep all three links busy for the same time: T rate - M for n = 3, which add to M."""
    time_s = case(100, 100, 80).limit_ms(MB) / 1e3
    shares = [time_s * rate * 1e6 * PAYLOAD / 8 - MB for rate in (100, 100, 80)]
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(MB)


def test_a_ring_goes_at_the_rate_of_its_slowest_link() -> None:
    assert case(200, 200, 50).ring_limit_ms(MB) == pytest.approx(4 / 3 * 8 * MB / (50e6 * PAYLOAD) * 1e3)


def test_limits_of_the_cases() -> None:
    ratios = {case.name: round(case.limit_ms(MB) / case.ring_limit_ms(MB), 3) for case in CASES}
    assert ratios == {
        "200x3": 1.0,
        "200x3+3": 0.75,
        "50x6+6": 0.6,
        "200-200-50": 0.75,
        "200x2x2": 0.667,
        "1000x3": 1.0,
        "1000x3+3": 0.75,
    }


def test_hosts_of_roles() -> None:
    two = case(200, 50, extra=1)
    assert two.rates == {"host-0": 2e8, "host-1": 5e7, "host-2": 1e8}
    roles = ("scheduler", "server-0", "server-1", "server-2", "worker-1")
    assert [two.host(role) for role in roles] == ["host-0", "host-0", "host-1", "host-2", "host-1"]
    pairs = Case((200, 200), extra=0, extra_mbit=0, ratio_bar=1.0, workers_per_host=2)
    assert [pairs.host(f"worker-{rank}") for rank in range(4)] == ["host-0", "host-0", "host-1", "host-1"]


def test_ratios_are_of_neighbouring_blocks() -> None:
    """A machine that gets slower block by block changes no ratio."""
    blocks = {
        "ours": [(1.0, 0.1), (2.0, 0.3), (8.0, 0.2)],
        "gloo": [(2.0, 0.0), (4.0, 0.0), (16.0, 0.0)],
        "floor": [(0.5, 0.0), (0.5, 0.0), (1.0, 0.0)],
    }
    figures = summary(blocks)
    assert figures["ratio_to_gloo"] == 0.5
    assert figures["spread_to_gloo"] == [0.5, 0.5]
    assert figures["ratio_to_floor"] == 4.0
    assert (figures["ours_ms"], figures["gloo_ms"], figures["floor_ms"]) == (2.0, 4.0, 0.5)
    assert figures["cpu_s"]["ours"] == pytest.approx(0.2)


def test_a_bar_is_met_up_to_its_value() -> None:
    bars = judge({"ratio_to_gloo": 0.5, "ratio_to_floor": 3.1}, {"ratio_to_gloo": 0.5, "ratio_to_floor": 3.0})
    assert {name: bar["met"] for name, bar in bars.items()} == {"ratio_to_gloo": True, "ratio_to_floor": False}
    assert not judge({"ratio": float("nan")}, {"ratio": 1.0})["ratio"]["met"]
