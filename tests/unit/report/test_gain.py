"""The end of a run against its own first sizes, and the message if they cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from dynamix_ps.report.gain import gain_of, gain_text
from dynamix_ps.run_record.json_lines import Line
from tests.unit.synthetic_run import WINDOW
from tests.unit.synthetic_run import window as window_line


def windows(*plans: int, sizes: tuple[int, int] = (64, 64), first: int = 0, **fields: Any) -> list[Line]:
    """One window of two workers for each of these plan versions."""
    return [
        window_line(rank, first + number, sizes[rank], plan_version=version, **fields)
        for number, version in enumerate(plans)
        for rank in (0, 1)
    ]


FIRST = windows(0, 0, duration_s=2.0, wait_s=1.0)
LAST = windows(1, 2, 2, 2, sizes=(96, 32), first=2, duration_s=1.0, wait_s=0.1)


def test_twice_as_fast_with_less_waiting() -> None:
    gain = gain_of(FIRST + LAST, 2, "adapt")
    assert gain.first is not None and gain.last is not None
    assert gain.ratio == pytest.approx(2.0)
    assert (gain.first.samples_per_s, gain.last.samples_per_s) == (128 * WINDOW / 2, 128 * WINDOW)
    assert (gain.first.batch_sizes, gain.last.batch_sizes) == ((64, 64), (96, 32))
    assert (gain.first.mean_wait, gain.last.mean_wait) == pytest.approx((0.5, 0.1))
    assert gain_text(gain) == (
        "2.00 times the samples/s of the first sizes: 2,560 against 1,280. Workers wait 10 % of the time, 50 % at first"
    )


def test_the_end_is_the_last_quarter() -> None:
    slow = windows(*[1] * 6, sizes=(96, 32), first=2, duration_s=4.0)
    fast = windows(2, 2, sizes=(96, 32), first=8, duration_s=1.0)
    assert gain_of(FIRST + slow + fast, 2, "adapt").ratio == pytest.approx(2.0)


def test_windows_that_stalled_or_lack_a_worker_do_not_count() -> None:
    stalled = windows(2, first=6, duration_s=100.0, flagged=True)
    alone = windows(2, first=7, duration_s=100.0)[:1]
    assert gain_of(FIRST + LAST + stalled + alone, 2, "adapt").ratio == pytest.approx(2.0)


def test_a_larger_global_batch_and_few_iterations_are_said() -> None:
    larger = windows(1, sizes=(128, 128), first=2, iterations=3, samples=128 * 3)
    gain = gain_of(FIRST + larger, 2, "adapt")
    assert "from 128 to 256, so a sample may teach less" in gain_text(gain)
    assert gain.rough and "Rough: measured over 40 iterations at first and 3 at the end" in gain_text(gain)
    assert not gain_of(FIRST + LAST, 2, "adapt").rough


@pytest.mark.parametrize(
    ("lines", "mode", "why"),
    [
        ([], "adapt", "no window was measured"),
        (FIRST, "adapt", "never changed"),
        (LAST, "adapt", "no window was measured with the first sizes"),
        (FIRST + windows(1, first=2), "adapt", "the first ones"),
        (FIRST, "observe", "mode observe leaves the batch sizes as they are"),
        (FIRST, "off", "mode off"),
        (windows(0, duration_s=None) + LAST, "adapt", "no window was measured with the first sizes"),
        (windows(0, sizes=(0, 0)) + LAST, "adapt", "no sample"),
    ],
)
def test_what_cannot_be_compared_is_unknown(lines: list[Line], mode: str, why: str) -> None:
    gain = gain_of(lines, 2, mode)
    assert gain.ratio is None
    assert gain_text(gain).startswith("unknown: ") and why in gain_text(gain)
