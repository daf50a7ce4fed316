"""Short windows are joined: what is counted adds up, what is measured is averaged, the newest state stays."""

from __future__ import annotations

import dataclasses
import math

import pytest

from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.evidence.measurements import JoinedWindows, trained_s
from dynamix_ps.policy.window_arrays import arrays_of
from tests.control_plane import record

PLAN = Plan(3, (32, 64))


def short(number: int, plan: Plan = PLAN, outside_s: float = math.nan, **fields: float) -> View:
    """A window of 0.25 s; worker 0 is away from training for `outside_s` of it."""
    records = tuple(
        record(
            rank, number, plan_version=plan.version, duration_s=0.25, compute_s=0.125 * (rank + 1),
            samples=100 * (rank + 1), outside_s=outside_s if rank == 0 else math.nan, **fields,
        )
        for rank in range(2)
    )  # fmt: skip
    return View(number, plan, ((4, 128),) * 2, records)


def joined(*views: View) -> View:
    joining = JoinedWindows()
    for view in views:
        joining.add(view)
    return joining.take()


def test_sums_means_and_newest_values() -> None:
    view = joined(short(5, loss=2.0, epoch=0.5, noise_signal=math.nan), short(6, loss=1.0, epoch=1.0, noise_signal=4.0))
    one = view.records[1]
    assert one is not None and view.window == 6
    before = short(5).records[1]
    assert before is not None
    assert (one.iterations, one.samples, one.duration_s, one.compute_s) == (2 * before.iterations, 400, 0.5, 0.5)
    assert (one.loss, one.epoch, one.noise_signal) == (1.5, 1.0, 4.0), "what is not known does not count"
    assert one.first_iteration == before.first_iteration


def test_every_number_of_a_record_is_joined_in_one_way() -> None:
    """Joining equal windows changes totals alone."""
    view = short(5, loss=2.0, accuracy=0.5, push_busy=0.3, cpu_ratio=0.7, throttled=0.1, units=8.0, global_units=16.0)
    twice = joined(view, view)
    totals = {
        "iterations", "samples", "duration_s", "compute_s", "push_pull_s", "wait_s", "input_s", "outside_s",
        "global_samples", "bytes_pushed", "gc_s", "units", "global_units",
    }  # fmt: skip
    for one, whole in zip(view.reported, twice.reported, strict=True):
        for field in dataclasses.fields(WindowRecord):
            value, of_both = getattr(one, field.name), getattr(whole, field.name)
            expected = 2 * value if field.name in totals else value
            assert of_both == expected or (math.isnan(of_both) and math.isnan(expected)), field.name


def test_other_sizes_begin_anew() -> None:
    joining = JoinedWindows()
    joining.add(short(1))
    joining.add(short(2))
    assert joining.duration_s == 0.5
    joining.add(short(3, Plan(4, (48, 48))))
    assert joining.duration_s == 0.25 and joining.joined().window == 3


def test_while_one_worker_evaluates_alone_nobody_trains() -> None:
    view = short(1, outside_s=0.2)
    assert trained_s(view) == pytest.approx(0.05)
    window = arrays_of(view)
    assert window.duration_s == pytest.approx(0.05) and window.worker_duration_s == pytest.approx(0.05)


def test_the_others_have_not_waited_for_a_worker_but_for_its_evaluation() -> None:
    assert arrays_of(short(1, outside_s=0.2, wait_s=0.21)).wait_s == pytest.approx([0.21, 0.01])
