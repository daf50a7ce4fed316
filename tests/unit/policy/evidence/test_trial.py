"""A plan that has made training slower is found out, and a machine that has become busy is not taken for one."""

from __future__ import annotations

import math

from dynamix_ps.policy.evidence.trial import LASTING, Sizes, Trial

FIRST, SECOND = (64, 64), (96, 32)


def trial(*windows: tuple[Sizes, float], jumped: bool = False) -> Trial:
    """After windows with these sizes and samples per second; a policy chose the sizes."""
    found = Trial(FIRST)
    for number, (sizes, rate) in enumerate(windows):
        found.see(sizes, rate, on_trial=True, jumped=jumped and number == len(windows) - 1)
    return found


def faster_before(_sizes: Sizes) -> float:
    return 1e9


def not_faster_before(_sizes: Sizes) -> float:
    return 0.0


def test_a_plan_that_is_slower_gives_way_to_the_one_before() -> None:
    found = trial((FIRST, 1000), (FIRST, 1010), (SECOND, 600)).worse_than(1.0, faster_before)
    assert found is not None and found.sizes == FIRST
    assert trial((FIRST, 1000), (FIRST, 1010), (SECOND, 950)).worse_than(1.0, faster_before) is None, "scatter"


def test_it_must_be_the_plan_or_last() -> None:
    windows = [(FIRST, 1000.0)] * 2 + [(SECOND, 600.0)]
    assert trial(*windows).worse_than(1.0, not_faster_before) is None
    assert trial(*windows).worse_than(1.0, lambda _: math.nan) is None
    lasting = windows + [(SECOND, 600.0)] * (LASTING - 1)
    assert trial(*lasting).worse_than(1.0, not_faster_before) is not None


def test_a_speed_that_jumps_in_its_second_window_ends_a_trial() -> None:
    windows = [(FIRST, 1000.0)] * 2 + [(SECOND, 650.0), (SECOND, 600.0)]
    assert trial(*windows).worse_than(1.0, faster_before) is not None
    assert trial(*windows, jumped=True).worse_than(1.0, faster_before) is None


def test_without_a_measured_plan_before_there_is_no_trial() -> None:
    assert trial((SECOND, 100)).worse_than(1.0, faster_before) is None
    others = Trial(FIRST)
    others.see(FIRST, 1000, on_trial=True, jumped=False)
    others.see(SECOND, 100, on_trial=False, jumped=False)  # workers have come or gone
    assert others.worse_than(1.0, faster_before) is None


def test_a_smaller_global_batch_may_cost_samples_per_second_down_to_the_first_sizes() -> None:
    larger, smaller = (256, 256), (128, 128)
    windows = [(FIRST, 1000.0)] * 2 + [(larger, 2000.0)] * 2
    assert trial(*windows, (smaller, 1400)).worse_than(1.0, faster_before) is None
    assert trial(*windows, (smaller, 500)).worse_than(1.0, faster_before) is not None
    assert trial(*windows).below_first(500, 1.0) and not trial(*windows).below_first(990, 1.0)
    assert not Trial(FIRST).below_first(1.0, 1.0), "the first sizes were not measured"


def test_sizes_that_came_back_must_gain() -> None:
    windows = [(FIRST, 1000.0)] * 2 + [(SECOND, 600.0)]
    back = trial(*windows, (FIRST, 990))
    assert back.gains(1.0)
    assert not trial(*windows, (FIRST, 610)).gains(1.0), "the machine has become slower, not the plan"
