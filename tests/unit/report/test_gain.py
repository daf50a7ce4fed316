"""The end of a run against its own first sizes, and the message if they cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from dynamix_ps.report.gain import WARM, gain_of, gain_text, progress_text
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


FIRST = windows(0, duration_s=9.0) + windows(0, 0, first=1, duration_s=2.0, wait_s=1.0)  # begins slowly
LAST = windows(1, 2, 2, 2, sizes=(96, 32), first=3, duration_s=1.0, wait_s=0.1)


def test_twice_as_fast_with_less_waiting() -> None:
    gain = gain_of(FIRST + LAST, 2, "adapt")
    assert gain.first is not None and gain.last is not None
    assert gain.ratio == pytest.approx(2.0)
    assert (gain.first.samples_per_s, gain.last.samples_per_s) == (128 * WINDOW / 2, 128 * WINDOW)
    assert (gain.first.batch_sizes, gain.last.batch_sizes) == ((64, 64), (96, 32))
    assert (gain.first.mean_wait, gain.last.mean_wait) == pytest.approx((0.5, 0.1))
    assert gain_text(gain) == (
        "2.00 times the samples/s of the first sizes: 2,560 against 1,280. "
        "In the last quarter workers wait 10 % of the time, 50 % at first"
    )
    assert not progress_text(gain), "the global batch has not changed"


def test_it_is_what_the_windows_give_by_hand() -> None:
    warm = [line for line in FIRST if line["first_iteration"] >= WARM]
    at_first = sum(line["samples"] for line in warm) / (sum(line["duration_s"] for line in warm) / 2)
    newest = LAST[-2:]  # the last quarter
    at_end = sum(line["samples"] for line in newest) / (sum(line["duration_s"] for line in newest) / 2)
    assert gain_of(FIRST + LAST, 2, "adapt").ratio == pytest.approx(at_end / at_first)


def test_a_first_plan_that_comes_soon_leaves_an_estimate() -> None:
    """Worker 0 computes a sample in 2 ms, worker 1 in 6 ms; an iteration takes 10 ms more. Both have a fixed part."""

    def at(number: int, version: int, sizes: tuple[int, int]) -> list[Line]:
        computed = [WINDOW * (0.03 + per_s * size) for per_s, size in zip((2e-3, 6e-3), sizes, strict=True)]
        return [
            window_line(
                rank, number, sizes[rank], plan_version=version, compute_s=computed[rank],
                duration_s=max(computed) + WINDOW * 0.01,
            )
            for rank in (0, 1)
        ]  # fmt: skip

    begin = [line | {"duration_s": 60.0, "compute_s": 55.0} for line in at(0, 0, (64, 64))]
    later = at(1, 1, (88, 40)) + at(2, 2, (100, 28)) + at(3, 3, (94, 34)) + at(4, 3, (94, 34))
    gain = gain_of(begin + later, 2, "adapt")
    assert gain.first is not None and gain.first.estimated
    assert gain.first.samples_per_s == pytest.approx(128 / (0.03 + 64 * 6e-3 + 0.01), rel=0.05)
    assert "(estimated from the times at later sizes)" in gain_text(gain)


def test_sizes_that_a_job_remembered_are_compared_with_the_first_ones() -> None:
    """No window ran with those. Worker 0 computes a sample three times as fast."""
    rows = [
        window_line(rank, number, size, plan_version=1, compute_s=0.96, duration_s=0.96)
        for number in range(4)
        for rank, size in enumerate((96, 32))
    ]
    assert gain_of(rows, 2, "adapt").ratio is None
    gain = gain_of(rows, 2, "adapt", first_sizes=(64, 64))
    assert gain.ratio is not None and 1.5 < gain.ratio < 2.1, "2, or less if a part of the time is fixed"
    assert "(estimated from the times at later sizes)" in gain_text(gain)
    assert gain_of([], 2, "adapt", first_sizes=(64, 64)).ratio is None


def test_while_one_worker_evaluates_alone_nobody_trains() -> None:
    evaluated = [line | {"duration_s": 6.0} for line in LAST[-2:]]
    evaluated[0] |= {"outside_s": 5.0}
    evaluated[1] |= {"wait_s": 5.1}
    with_it, without = gain_of(FIRST + LAST[:-2] + evaluated, 2, "adapt"), gain_of(FIRST + LAST, 2, "adapt")
    assert with_it.ratio == pytest.approx(without.ratio)
    assert with_it.last and without.last and with_it.last.mean_wait == pytest.approx(without.last.mean_wait)


def test_the_end_is_the_last_quarter() -> None:
    slow = windows(*[1] * 6, sizes=(96, 32), first=3, duration_s=4.0)
    fast = windows(2, 2, sizes=(96, 32), first=9, duration_s=1.0)
    assert gain_of(FIRST + slow + fast, 2, "adapt").ratio == pytest.approx(2.0)


def test_windows_that_stalled_or_lack_a_worker_do_not_count() -> None:
    stalled = windows(2, first=7, duration_s=100.0, flagged=True)
    alone = windows(2, first=8, duration_s=100.0)[:1]
    assert gain_of(FIRST + LAST + stalled + alone, 2, "adapt").ratio == pytest.approx(2.0)


def test_another_global_batch_has_a_line_of_its_own() -> None:
    larger = windows(1, sizes=(128, 128), first=3)
    unknown = progress_text(gain_of(FIRST + larger, 2, "adapt"))
    assert unknown.startswith("the global batch went from 128 to 256") and "is unknown" in unknown

    measured = [line | {"noise_variance": 1280.0, "noise_signal": 10.0} for line in larger]
    gain = gain_of(FIRST + measured, 2, "adapt", "adascale")
    assert gain.progress_per_sample == pytest.approx((128 + 128) / (128 + 256)), "Pollux's efficiency"
    assert gain.ratio == pytest.approx(4.0)
    assert "teaches 0.67 times as much as at first, which makes 2.67 times the progress per second" in progress_text(
        gain
    )


@pytest.mark.parametrize(
    ("lines", "mode", "why"),
    [
        ([], "adapt", "no window was measured"),
        (FIRST, "adapt", "never changed"),
        (LAST, "adapt", "no window was measured with the first sizes"),
        (FIRST + windows(1, first=3), "adapt", "the first ones"),
        (
            FIRST + windows(1, sizes=(96, 32), first=3, iterations=3),
            "adapt",
            "only 3 iterations were measured at the end",
        ),
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
    assert not progress_text(gain)


def test_one_worker_gains_nothing() -> None:
    """Its first iterations are slow, and that is no gain."""
    alone = [line for line in FIRST + windows(1, sizes=(96, 32), first=3, duration_s=0.1) if line["rank"] == 0]
    assert gain_text(gain_of(alone, 1, "adapt")) == "unknown: one worker waits for nobody"
