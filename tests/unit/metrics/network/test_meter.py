"""The meter: totals never fall, only sent bytes count, unknown values stay unknown."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.metrics.network.connection import Connection, Reading, SourceName
from dynamix_ps.metrics.network.meter import FORGET_AFTER_S, NAMESPACE, Totals, TrafficMeter, rates


def connection(
    name: str = "a",
    out: float = 0,
    received: float = 0,
    retransmits: float = 0,
    busy_s: float = 0,
    rtt_s: float = math.nan,
    queued: float = 0,
    closed: bool = False,
) -> Connection:
    return Connection(
        id=name,
        pid=1,
        netns=1,
        local=f"10.0.0.1:{ord(name[0])}",
        remote="10.0.0.2:80",
        bytes_out=out,
        bytes_in=received,
        retransmits=retransmits,
        busy_s=busy_s,
        rtt_s=rtt_s,
        unsent_bytes=queued,
        unread_bytes=queued,
        closed=closed,
    )


def namespace(out: float) -> Connection:
    return Connection("netns-1", 0, 1, NAMESPACE, NAMESPACE, bytes_out=out, bytes_in=out, retransmits=0)


def reading(*connections: Connection, taken_s: float = 0, source: SourceName = "ebpf") -> Reading:
    return Reading(source=source, taken_s=taken_s, connections=connections)


def test_a_connection_of_the_first_reading_counts_from_what_it_had() -> None:
    meter = TrafficMeter()
    assert meter.update(reading(connection(out=100))).total.bytes_out == 0
    assert meter.update(reading(connection(out=130))).total.bytes_out == 30


def test_a_connection_that_appears_later_counts_from_nothing() -> None:
    meter = TrafficMeter()
    meter.update(reading())
    assert meter.update(reading(connection(out=100, received=7))).total == Totals(100, 7, 0, 0)


def test_flows_show_what_the_kernel_shows() -> None:
    meter = TrafficMeter()
    (flow,) = meter.update(reading(connection(out=100, received=5, retransmits=2, busy_s=1.5))).flows
    assert (flow.bytes_out, flow.bytes_in, flow.retransmits, flow.busy_s) == (100, 5, 2, 1.5)


def test_last_bytes_of_a_closed_connection_count_once_and_it_is_no_flow_any_more() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=100)))
    for _ in range(3):
        traffic = meter.update(reading(connection(out=140, closed=True)))
        assert (traffic.total.bytes_out, traffic.flows) == (40, ())


def test_after_a_fall_only_what_is_shown_counts() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=100, retransmits=9)))
    traffic = meter.update(reading(connection(out=30, retransmits=1)))
    assert (traffic.total.bytes_out, traffic.total.retransmits) == (30, 1)
    assert traffic.flows[0].bytes_out == 130


def test_busy_time_that_falls_alone_is_no_new_beginning() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=1, busy_s=5.004)))
    assert meter.update(reading(connection(out=2, busy_s=5.0))).total.busy_s == 0
    assert meter.update(reading(connection(out=3, busy_s=5.012))).total.busy_s == pytest.approx(0.008)


def test_ebpf_and_sock_diag_continue_each_other() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=100)))
    meter.update(reading(source="none"))
    traffic = meter.update(reading(connection(out=150), source="sockdiag"))
    assert (traffic.total.bytes_out, traffic.restarts) == (50, 0)


def test_unknown_connections_of_another_source_count_from_what_they_had() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=100)))
    assert meter.update(reading(connection("b", out=900), source="sockdiag")).total.bytes_out == 0


def test_namespace_counters_are_not_mixed_with_those_of_connections() -> None:
    meter = TrafficMeter()
    first = meter.update(reading(connection(out=100), taken_s=1))
    second = meter.update(reading(namespace(10_000), source="procfs", taken_s=2))
    third = meter.update(reading(namespace(10_500), source="procfs", taken_s=3))
    fourth = meter.update(reading(connection(out=700), taken_s=4))
    assert [t.total.bytes_out for t in (first, second, third, fourth)] == [0, 0, 500, 500]
    assert math.isnan(rates(first, second).out_bytes_per_s)
    assert rates(second, third).out_bytes_per_s == 500
    assert math.isnan(rates(first, fourth).out_bytes_per_s)


def test_what_a_source_cannot_tell_is_unknown() -> None:
    meter = TrafficMeter()
    traffic = meter.update(reading(namespace(1), source="procfs"))
    assert math.isnan(traffic.total.busy_s)
    assert math.isnan(traffic.unsent_bytes)
    assert math.isnan(traffic.rtt_s)
    nothing = meter.update(reading(source="none"))
    assert math.isnan(nothing.total.bytes_out)
    assert math.isnan(nothing.unread_bytes)


def test_a_total_is_back_when_its_counter_is() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(busy_s=1)))
    assert math.isnan(meter.update(reading(connection(busy_s=math.nan))).total.busy_s)
    traffic = meter.update(reading(connection(busy_s=3)))
    assert (traffic.total.busy_s, traffic.flows[0].busy_s) == (2, 3)


def test_queues_are_summed_over_open_connections() -> None:
    traffic = TrafficMeter().update(
        reading(connection(queued=3), connection("b", queued=4), connection("c", queued=9, closed=True))
    )
    assert (traffic.unsent_bytes, traffic.unread_bytes) == (7, 7)


def test_round_trip_is_that_of_the_connection_that_sends_most_now() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=900, rtt_s=0.1), connection("b", rtt_s=0.2)))
    assert meter.update(reading(connection(out=901, rtt_s=0.1), connection("b", out=50, rtt_s=0.2))).rtt_s == 0.2
    received = connection(out=902, received=10**6, rtt_s=0.1)
    assert meter.update(reading(received, connection("b", out=60, rtt_s=0.2))).rtt_s == 0.2


def test_only_kept_connections_count_and_a_namespace_always() -> None:
    def only_b(each: Connection) -> bool:
        return each.id == "b"

    meter = TrafficMeter(keep=only_b)
    meter.update(reading())
    traffic = meter.update(reading(connection(out=5), connection("b", out=7)))
    assert traffic.total.bytes_out == 7
    assert len(traffic.flows) == 1
    assert len(meter.update(reading(namespace(1), source="procfs")).flows) == 1


def test_rates() -> None:
    meter = TrafficMeter()
    before = meter.update(reading(connection(busy_s=1), connection("b"), taken_s=10))
    after = meter.update(
        reading(connection(out=200, retransmits=4, busy_s=2), connection("b", received=50, busy_s=0.5), taken_s=12)
    )
    result = rates(before, after)
    assert (result.out_bytes_per_s, result.in_bytes_per_s, result.retransmits_per_s) == (100, 25, 2)
    assert result.busy == 0.5
    assert math.isnan(rates(after, after).out_bytes_per_s)
    assert math.isnan(rates(before, meter.update(reading(taken_s=13))).busy)


def test_busy_is_at_most_all_of_the_time() -> None:
    meter = TrafficMeter()
    before = meter.update(reading(connection(busy_s=1), taken_s=1))
    assert rates(before, meter.update(reading(connection(busy_s=2.004), taken_s=2))).busy == 1


def test_connections_long_gone_are_forgotten() -> None:
    meter = TrafficMeter()
    meter.update(reading(connection(out=5)))
    meter.update(reading(taken_s=FORGET_AFTER_S + 1))
    assert not meter._tracks


_STEP = st.tuples(
    st.sampled_from(["send", "restart", "close", "open", "read"]),
    st.sampled_from("abc"),
    st.integers(0, 3_000_000_000),
    st.sampled_from(["ebpf", "ebpf", "sockdiag", "procfs", "none"]),
)


def _play(
    steps: list[tuple[str, str, int, SourceName]], shown: Callable[[int], int], source: SourceName | None = None
) -> list[tuple[float, int]]:
    """(counted, really sent) after each reading, of connections and their namespace that do what the steps say."""
    meter, sent, counters, is_closed, result = TrafficMeter(), 0, {"a": 0, "b": 0}, set[str](), []
    meter.update(reading(*(connection(name) for name in counters)))
    for action, name, amount, other in [*steps, ("read", "a", 0, "ebpf")]:
        if action == "send" and name in counters and name not in is_closed:
            counters[name] += amount
            sent += amount
        elif action == "restart" and name in counters:
            counters[name] = 0
            is_closed.discard(name)
        elif action == "open":
            counters.setdefault(name, 0)
        elif action == "close" and name in counters:
            is_closed.add(name)
        elif action == "read":
            asked = source or other
            found = [connection(name, out=shown(value), closed=name in is_closed) for name, value in counters.items()]
            if asked == "procfs":
                found = [namespace(shown(sent))]
            total = meter.update(reading(*(found if asked != "none" else ()), source=asked)).total.bytes_out
            if asked != "none":
                result.append((total, sent))
    return result


@given(st.lists(_STEP, max_size=40))
def test_totals_never_fall_and_never_pass_what_was_sent(steps: list[tuple[str, str, int, SourceName]]) -> None:
    before = 0.0
    for counted, sent in _play(steps, shown=lambda value: value):
        assert before <= counted <= sent
        before = counted


@given(st.lists(_STEP, max_size=40))
def test_counters_of_32_bits_that_wrap_never_count_too_much(steps: list[tuple[str, str, int, SourceName]]) -> None:
    before = 0.0
    for counted, sent in _play(steps, shown=lambda value: value % 2**32):
        assert before <= counted <= sent
        before = counted


@given(st.lists(_STEP.filter(lambda step: step[0] != "restart"), max_size=40))
def test_without_resets_everything_counts(steps: list[tuple[str, str, int, SourceName]]) -> None:
    for counted, sent in _play(steps, shown=lambda value: value, source="ebpf"):
        assert counted == sent
