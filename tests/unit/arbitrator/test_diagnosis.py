"""Slow worker or slow link? Constructed windows of workers that train in step."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.arbitrator.diagnosis import diagnose, labelled
from dynamix_ps.messages import LinkView, WindowRecord
from tests.control_plane import record

NAN = math.nan


def window(*own: float, flagged: bool = False) -> list[WindowRecord | None]:
    """Records of workers that all took 10 s, and computed for these parts of it."""
    return [
        record(rank, duration_s=10.0, compute_s=9 * part, input_s=part, wait_s=0.0, flagged=flagged)
        for rank, part in enumerate(own)
    ]


def links(*busy: tuple[float, float]) -> list[LinkView]:
    return [LinkView(rank, push_busy=push, pull_busy=pull) for rank, (push, pull) in enumerate(busy)]


QUICK = (0.05, 0.03)


@pytest.mark.parametrize(
    ("own", "busy", "expected"),
    [
        pytest.param((0.3, 0.3, 0.3), (QUICK, QUICK, QUICK), ("", "", ""), id="equal"),
        pytest.param((0.3, 0.9, 0.3), (QUICK, QUICK, QUICK), ("", "compute", ""), id="slow CPU"),
        pytest.param((0.3, 0.3, 0.3), (QUICK, QUICK, (0.5, 0.2)), ("", "", "link"), id="slow link"),
        pytest.param((0.3, 0.3, 0.3), (QUICK, (0.6, 0.6), QUICK), ("", "link", ""), id="slow both ways, overlapping"),
        pytest.param((0.3, 0.3, 0.3), (QUICK, QUICK, (NAN, 0.6)), ("", "", "link"), id="only pull is known"),
        pytest.param((0.3, 0.9, 0.3), (QUICK, (0.3, 0.4), QUICK), ("", "compute", ""), id="slow CPU reads slowly too"),
        pytest.param((0.8, 0.8, 0.8), ((0.6, 0.1),) * 3, ("", "", ""), id="pushes beside compute"),
        pytest.param((0.3, 0.3, 0.3), ((0.3, 0.3),) * 3, ("", "", ""), id="slow server"),
        pytest.param((0.25, 0.5, 0.95), (QUICK, QUICK, QUICK), ("", "", "compute"), id="three speeds"),
        pytest.param((0.9, 0.9, 0.3), (QUICK, QUICK, QUICK), ("compute", "compute", ""), id="two of three slow"),
        pytest.param((0.9, 0.3, 0.3), (QUICK, (0.4, 0.2), QUICK), ("compute", "link", ""), id="one of each"),
        pytest.param((0.9, 0.3), (QUICK, QUICK), ("compute", ""), id="two workers"),
        pytest.param((0.9, 0.9, 0.9, 0.3), (QUICK,) * 4, ("", "", "", ""), id="one is fast"),
        pytest.param((0.50, 0.55, 0.45), (QUICK, QUICK, QUICK), ("", "", ""), id="small differences"),
        pytest.param((0.3, 0.9, 0.3), ((NAN, NAN),) * 3, ("", "compute", ""), id="network unknown"),
        pytest.param((0.3, 0.3, 0.3), ((NAN, NAN), (0.6, 0.1), QUICK), ("", "link", ""), id="one unknown"),
    ],
)
def test_who_holds_everybody_up(
    own: tuple[float, ...], busy: tuple[tuple[float, float], ...], expected: tuple[str, ...]
) -> None:
    assert diagnose(window(*own), links(*busy)) == expected


@pytest.mark.parametrize(
    ("own", "samples", "expected"),
    [
        pytest.param((0.9, 0.5, 0.5), (400, 100, 100), ("", "", ""), id="the fastest has the largest batch"),
        pytest.param((0.9, 0.3, 0.3), (300, 105, 100), ("", "", ""), id="equal speeds"),
        pytest.param((0.9, 0.3, 0.3), (200, 100, 100), ("compute", "", ""), id="slow, with the largest batch"),
        pytest.param((0.9, 0.9, 0.3), (400, 100, 100), ("", "compute", ""), id="the slow one of two"),
        pytest.param((0.9, 0.0, 0.3), (400, 0, 100), ("", "", ""), id="one without samples"),
    ],
)
def test_a_worker_is_not_slow_because_its_batch_is_large(
    own: tuple[float, ...], samples: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    records = [dataclasses.replace(one, samples=count) for one, count in zip(window(*own), samples, strict=True) if one]
    assert diagnose(records, links(QUICK, QUICK, QUICK)) == expected


@given(st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 1000)), min_size=2, max_size=9))
def test_compute_is_never_said_of_the_fastest(workers: list[tuple[float, int]]) -> None:
    records = [
        dataclasses.replace(one, samples=count)
        for one, (_, count) in zip(window(*(own for own, _ in workers)), workers, strict=True)
        if one
    ]
    speeds = [one.samples / (one.compute_s + one.input_s) for one in records]
    assert diagnose(records, [])[speeds.index(max(speeds))] != "compute"


@pytest.mark.parametrize(("throttled", "cause"), [(0.6, "compute"), (0.1, "link"), (NAN, "link")])
def test_a_process_held_back_by_its_quota_is_slow_itself_and_not_its_link(throttled: float, cause: str) -> None:
    records = [dataclasses.replace(one, throttled=0.0) for one in window(0.2, 0.2, 0.2) if one]
    records[2] = dataclasses.replace(records[2], throttled=throttled)
    assert diagnose(records, links(QUICK, QUICK, (0.2, 0.4))) == ("", "", cause)


def test_a_window_with_a_pause_tells_nothing() -> None:
    assert diagnose(window(0.3, 0.9, 0.3, flagged=True), []) == ("", "", "")


def test_who_did_not_report_is_left_out() -> None:
    records = window(0.3, 0.9, 0.3)
    assert diagnose([records[0], None, records[2]], []) == ("", "", "")
    assert diagnose([None, records[1], None], []) == ("", "", "")
    assert diagnose([None, records[1], records[2]], []) == ("", "compute", "")


def test_the_answer_is_written_into_the_link() -> None:
    found = labelled(window(0.3, 0.9, 0.3), links(QUICK, QUICK, QUICK))
    assert [link.slow for link in found] == ["", "compute", ""]
    assert found[1].push_busy == QUICK[0]
    assert labelled(window(0.3, 0.9, 0.3), []) == ()


PART = st.floats(0, 1)


@given(st.lists(st.tuples(PART, PART, PART), min_size=1, max_size=9))
def test_never_all_of_them(workers: list[tuple[float, float, float]]) -> None:
    found = diagnose(window(*(own for own, _, _ in workers)), links(*((push, pull) for _, push, pull in workers)))
    assert set(found) <= {"", "compute", "link"}
    assert "" in found
