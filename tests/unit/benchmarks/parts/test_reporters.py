"""What `benchmarks.parts.reporters` makes of what the processes of the reporters tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.parts.reporters import one_window
from dynamix_ps.messages import Plan

OLD, NEW = Plan(3, (64, 64, 64, 64)), Plan(4, (32, 64, 64, 96))
MADE = (["report"] * 5, ["a", "b", "c", "d"])  # four workers and a server


class Told:
    """A process that answers `reported`, and then this."""

    def __init__(self, *answers: Any) -> None:
        self.answers: Iterator[Any] = iter(["reported", *answers])
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def recv(self) -> Any:
        return next(self.answers)


def test_times_count_from_the_last_report_to_the_first_half_and_all_workers() -> None:
    pipes: list[Any] = [Told((10.0, (NEW, [10.01, 10.04]))), Told((None, (NEW, [10.02, 10.03])))]
    _, times_s, plan = one_window(pipes, MADE, OLD)
    assert times_s == pytest.approx((0.01, 0.03, 0.04))
    assert plan == NEW
    first, second = (pipe.sent[0] for pipe in pipes)
    assert (first.reports, first.alone) == ((("c", "report"),), ("a", "report"))
    assert (second.reports, second.alone) == ((("b", "report"), ("d", "report")), None)


def test_a_window_without_a_plan_has_no_times() -> None:
    pipes: list[Any] = [Told((10.0, (None, []))), Told((None, (None, [])))]
    assert one_window(pipes, MADE, OLD)[1:] == ((), OLD)
