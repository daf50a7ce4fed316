"""Joining both sides of a connection: rates, unknown values, and late, repeated or replaced reports."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.arbitrator.links import STALE_S, LinkReports
from dynamix_ps.messages import Flow, LinkView, RoleReport, SystemSample

NAN = math.nan
PUSH, PULL = ("10.0.0.1:41000", "10.0.9.1:9000"), ("10.0.0.1:8000", "10.0.9.1:51000")  # the worker's ends


def turned(ends: tuple[str, str]) -> tuple[str, str]:
    return ends[1], ends[0]


def flow(ends: tuple[str, str], out: float = 0.0, into: float = 0.0, **more: float) -> Flow:
    return Flow(*ends, out, into, more.pop("retransmits", 0.0), **more)


def report(name: str, time_s: float, *flows: Flow, pid: int = 1, **changes: Any) -> RoleReport:
    role, _, number = name.partition("-")
    rank = int(number) if role == "worker" else -1
    base = RoleReport(name, role, rank, "host", pid, time_s, "ebpf", 0.25, flows, SystemSample(cpu_ratio=0.5))
    return dataclasses.replace(base, **changes)


def worker(time_s: float, pushed: float, pulled: float, **push: float) -> RoleReport:
    return report("worker-0", time_s, flow(PUSH, pushed, **push), flow(PULL, 0.0, pulled))


def server(time_s: float, pushed: float, pulled: float, **pull: float) -> RoleReport:
    return report("server-0", time_s, flow(turned(PUSH), 0.0, pushed), flow(turned(PULL), pulled, **pull))


def seen(*reports: RoleReport, now_s: float = 0.0, workers: int = 1, servers: int = 1) -> tuple[LinkView, ...]:
    links = LinkReports(workers, servers)
    for item in reports:
        links.add(item, now_s)
    return links.links(now_s)


def test_one_link_from_both_sides() -> None:
    (link,) = seen(
        worker(10.0, 1000, 100, retransmits=2.0, busy_s=1.0, rtt_s=0.010),
        server(50.0, 900, 110, retransmits=0.0, busy_s=0.5, rtt_s=0.020),
        worker(12.0, 3000, 300, retransmits=8.0, busy_s=2.5, rtt_s=0.011),
        server(54.0, 4500, 510, retransmits=4.0, busy_s=0.9, rtt_s=0.021),
    )
    assert link.push_bytes_per_s == 900  # of the server, by its own clock
    assert link.pull_bytes_per_s == 100
    assert (link.push_retransmits_per_s, link.pull_retransmits_per_s) == (3, 1)
    assert (link.push_rtt_s, link.pull_rtt_s) == (0.011, 0.021)
    assert (link.push_busy, link.pull_busy) == pytest.approx((0.75, 0.1))
    assert link.push_difference == pytest.approx((900 - 1000) / 1000)
    assert (link.source, link.age_s) == ("ebpf", 0.25)


def test_sides_that_cover_different_times_are_not_compared() -> None:
    def difference(*moments: float) -> float:
        links = LinkReports(1, 1)
        for moment in moments:  # the server's interval is longer than a window
            links.add(worker(moment, 1000 * moment, 0), moment)
        for moment in (0.0, 2.0):
            links.add(server(moment, 1000 * moment, 0), moment)
        return links.links(2.0)[0].push_difference

    assert difference(0.5, 1.9) == pytest.approx(0)
    assert math.isnan(difference(1.5, 1.9))
    assert math.isnan(difference(1.5, 9.9))


def test_both_sides_agree() -> None:
    pairs = [(worker(t, 1000 * t, 0), server(t, 1000 * t, 0)) for t in (1.0, 2.0)]
    assert seen(*pairs[0], *pairs[1])[0].push_difference == 0
    idle = [(worker(t, 1000, 0), server(t, 1000, 0)) for t in (1.0, 2.0)]
    assert seen(*idle[0], *idle[1])[0].push_difference == 0


def test_servers_of_one_worker_are_added_up_and_the_busiest_tells_the_round_trip() -> None:
    other = ("10.0.0.1:41001", "10.0.9.2:9000")

    def at(t: float) -> list[RoleReport]:
        mine = (flow(PUSH, 100 * t, busy_s=0.2 * t, rtt_s=0.01), flow(other, 300 * t, busy_s=0.6 * t, rtt_s=0.05))
        return [
            report("worker-0", t, *mine),
            report("server-0", t, flow(turned(PUSH), 0.0, 100 * t)),
            report("server-1", t, flow(turned(other), 0.0, 300 * t)),
        ]

    (link,) = seen(*at(1.0), *at(2.0), servers=2)
    assert link.push_bytes_per_s == 400
    assert link.push_rtt_s == 0.05
    assert link.push_busy == pytest.approx(0.6)


def test_a_server_without_a_probe_leaves_what_the_worker_knows() -> None:
    (link,) = seen(worker(1.0, 0, 0), worker(2.0, 500, 50), server(1.0, 0, 0) and report("server-0", 2.0))
    assert (link.push_bytes_per_s, link.pull_bytes_per_s) == (500, 50)
    assert math.isnan(link.push_difference)
    assert math.isnan(link.pull_retransmits_per_s)
    assert link.source == "none"


def test_a_worker_whose_source_fails_is_still_seen_by_the_server() -> None:
    links = LinkReports(1, 1)
    for item in (worker(1.0, 0, 0), server(1.0, 0, 0), worker(2.0, 500, 50), server(2.0, 500, 50)):
        links.add(item, 0.0)
    assert links.links(0.0)[0].push_bytes_per_s == 500
    links.close(0.0)
    for item in (report("worker-0", 3.0, network_source="none", network_age_s=NAN), server(3.0, 900, 50)):
        links.add(item, 1.0)
    (link,) = links.links(1.0)
    assert link.push_bytes_per_s == 400
    assert math.isnan(link.push_retransmits_per_s)


def test_what_goes_to_the_scheduler_or_elsewhere_is_not_push() -> None:
    control, download = ("10.0.0.1:42000", "10.0.9.9:7000"), ("10.0.0.1:43000", "1.2.3.4:443")

    def at(t: float, servers: bool) -> list[RoleReport]:
        mine = report("worker-0", t, flow(PUSH, 100 * t), flow(control, 7000 * t), flow(download, 0.0, 9000 * t))
        found = [mine, report("scheduler", t, flow(turned(control), 0.0, 7000 * t))]
        return [*found, report("server-0", t, flow(turned(PUSH), 0.0, 100 * t))] if servers else found

    (link,) = seen(*at(1.0, True), *at(2.0, True))
    assert (link.push_bytes_per_s, link.pull_bytes_per_s) == (100, 0)
    (link,) = seen(*at(1.0, False), *at(2.0, False))
    assert link.push_bytes_per_s == 100


def test_the_first_report_gives_no_rate_and_none_at_all_gives_no_link() -> None:
    assert seen() == ()
    assert seen(report("worker-0", 1.0), report("server-0", 1.0)) == ()
    (link,) = seen(worker(1.0, 1000, 1000), server(1.0, 1000, 1000))
    assert math.isnan(link.push_bytes_per_s)
    assert link.age_s == 0.25


def test_late_and_duplicate_reports_change_nothing() -> None:
    story = [worker(1.0, 0, 0), server(1.0, 0, 0), worker(2.0, 800, 0), server(2.0, 800, 0)]
    late = [*story, worker(1.5, 100, 0), server(2.0, 800, 0), server(1.0, 0, 0), worker(2.0, 5, 0)]
    assert seen(*late) == seen(*story)
    assert seen(*story)[0].push_bytes_per_s == 800


def test_a_restarted_worker_begins_anew_and_its_predecessor_is_not_heard_any_more() -> None:
    again = ("10.0.0.1:45000", PUSH[1])
    new = [report("worker-0", t, flow(again, 50 * (t - 5)), pid=2) for t in (5.0, 6.0)]
    old = [worker(1.0, 0, 0), worker(2.0, 10_000, 0)]
    (link,) = seen(*old, *new, worker(2.5, 12_000, 0))
    assert link.push_bytes_per_s == 50
    (link,) = seen(*old, new[0])
    assert math.isnan(link.push_bytes_per_s)


def test_a_clock_that_was_set_back_is_accepted_after_a_while() -> None:
    links = LinkReports(1, 1)
    links.add(worker(1000.0, 5000, 0), 0.0)
    links.add(worker(10.0, 6000, 0), STALE_S + 1)
    links.add(worker(12.0, 6200, 0), STALE_S + 3)
    assert links.links(STALE_S + 3)[0].push_bytes_per_s == 100


def test_counters_that_fall_and_new_connections_count_from_zero() -> None:
    (link,) = seen(worker(1.0, 9000, 500), worker(2.0, 30, 500))
    assert link.push_bytes_per_s == 30
    fresh = ("10.0.0.1:47000", PUSH[1])
    (link,) = seen(worker(1.0, 100, 0), report("worker-0", 2.0, flow(PUSH, 150), flow(fresh, 20)))
    assert link.push_bytes_per_s == 70


def test_unknown_counters_are_unknown_rates() -> None:
    nothing = report("worker-0", 1.0, flow(PUSH, NAN, NAN, retransmits=NAN))
    (link,) = seen(nothing, dataclasses.replace(nothing, time_s=2.0))
    for field in dataclasses.fields(LinkView):
        value = getattr(link, field.name)
        assert not isinstance(value, float) or math.isnan(value) or field.name == "age_s", field.name


def test_rates_cover_the_time_between_two_closed_windows() -> None:
    links = LinkReports(1, 1)
    for t in range(5):
        links.add(worker(float(t), 100.0 * t, 0), t)
    assert links.links(5)[0].push_bytes_per_s == 100
    links.close(0.0)
    for t in range(5, 9):
        links.add(worker(float(t), 400 + 1000.0 * (t - 4), 0), t)
    assert links.links(9)[0].push_bytes_per_s == 1000  # of the four since the window, not of the last one
    links.close(0.0)
    assert links.links(9)[0].push_bytes_per_s == 1000


def test_a_role_that_fell_silent_is_history() -> None:
    links = LinkReports(1, 1)
    for item in (worker(1.0, 0, 0), server(1.0, 0, 0), worker(2.0, 10, 0), server(2.0, 10, 0)):
        links.add(item, 0.0)
    assert len(links.servers(0.0)) == 1
    for _ in range(3):
        links.close(0.0)
    assert links.links(STALE_S + 1) == ()
    assert links.servers(STALE_S + 1) == ()


def test_a_server_is_shown_with_its_queues_and_its_machine() -> None:
    links = LinkReports(1, 1)
    flows = [(flow(("s:1", "w:1"), 10 * t, 1000 * t, unsent_bytes=5.0, unread_bytes=70.0),) for t in (1, 2)]
    for t, one in zip((1.0, 3.0), flows, strict=True):
        links.add(report("server-0", t, *one), 0.0)
    links.add(report("scheduler", 1.0), 0.0)
    scheduler, view = links.servers(1.0)
    assert (view.name, view.push_bytes_per_s, view.pull_bytes_per_s) == ("server-0", 500, 5)
    assert (view.unread_bytes, view.unsent_bytes, view.age_s) == (70, 5, 1.25)
    assert (view.system.cpu_ratio, view.source) == (0.5, "ebpf")
    assert scheduler.name == "scheduler"
    assert math.isnan(scheduler.push_bytes_per_s)


def test_memory_is_bounded_however_many_names_report() -> None:
    links = LinkReports(1, 2)
    for number in range(1000):
        links.add(report(f"server-{number}", 1.0), float(number))
    names = [view.name for view in links.servers(1000.0)]
    assert len(names) <= 12
    assert "server-999" in names


NUMBER = st.one_of(st.just(NAN), st.floats(0, 1e15), st.sampled_from([0.0, 1.0]))
ENDS = st.sampled_from([PUSH, PULL, turned(PUSH), turned(PULL), ("a:1", "*")])
FLOWS = st.lists(
    st.builds(lambda ends, *n: Flow(*ends, *n), ENDS, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER),
    max_size=4,
)
REPORTS = st.builds(
    lambda name, t, flows, pid: report(name, t, *flows, pid=pid),
    st.sampled_from(["worker-0", "worker-1", "server-0", "server-1", "scheduler"]),
    st.floats(0, 1e10),
    FLOWS,
    st.integers(1, 2),
)


@given(st.lists(st.tuples(REPORTS, st.floats(0, 30), st.booleans()), max_size=12))
def test_whatever_is_reported_no_rate_is_negative_or_infinite(story: list[tuple[RoleReport, float, bool]]) -> None:
    links, now_s = LinkReports(2, 1), 0.0
    for item, later_s, closes in story:
        now_s += later_s
        links.add(item, now_s)
        views = [*links.links(now_s), *links.servers(now_s)]
        if closes:
            links.close(0.0)
        for view in views:
            for field in dataclasses.fields(view):
                value = getattr(view, field.name)
                if isinstance(value, float):
                    assert not math.isinf(value), field.name
                    assert not value < (-1 if field.name == "push_difference" else 0), field.name
                if field.name.endswith("busy"):
                    assert not value > 1
