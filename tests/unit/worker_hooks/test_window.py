"""Windows: blocked time is split into network and waiting for others, and a window has one plan."""

from __future__ import annotations

import math

import pytest

from dynamix_ps.messages import Plan
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.loading.batches import Batch
from worker_hooks.observe.change import LASTING
from worker_hooks.observe.stopwatch import Stopwatch, Times
from worker_hooks.observe.window import FIRST_WINDOW, IterationRecord, WindowMeter
from worker_hooks.sampling.sampler import Cursor, Step


def iteration(
    number: int, plan: int = 0, blocked_s: float = 0.0, waited: tuple[float, ...] = (0.0,), lasted_s=1.25, **changes
):
    """`waited` and `lasted_s` are of the iteration before."""
    values = {
        "samples": 10,
        "units": (0.0, 0.0),
        "sizes": (10, 20),
        "global_samples": 30,
        "loss": 2.0,
        "correct": 5.0,
        "stalled": False,
        "grad_sq": 4.0,
        "global_grad_sq": 1.0,
        "epoch": number / 4,
    } | changes
    values.setdefault("loss_weight", values["samples"])
    return IterationRecord(
        number=number,
        plan_version=plan,
        batch_size=10 + plan,
        times=Times(0.25, 1.0, blocked_s, 1.25 + blocked_s, cpu_s=0.5, gc_s=0.125),
        grad_sq=values.pop("grad_sq"),
        bytes_pushed=100,
        view=GlobalView(
            30,
            1.0,
            0.5,
            0,
            (10, 20),
            (4.0, 2.0),
            waited,
            (),
            (0,),
            ((0.0,), (0.0,)),
            lasted_s=lasted_s,
            members=(1,) * len(waited),
            units=values.pop("units"),
        ),
        **values,
    )


def records(iterations):
    meter = WindowMeter(rank=1, length=3)
    return [record for record in map(meter.add, iterations) if record is not None]


def test_blocked_time_beyond_the_fastest_is_waiting_for_others():
    """The trailer of an iteration carries everybody's blocked time of the iteration before."""
    rows = [iteration(i, blocked_s=5.0, waited=(1.0, 5.0, 3.0)) for i in range(4)]
    (record,) = records(rows)
    assert record.push_pull_s == pytest.approx(3.0)
    assert record.wait_s == pytest.approx(12.0)
    assert record.input_s + record.compute_s + record.push_pull_s + record.wait_s == pytest.approx(record.duration_s)


def test_a_window_closes_one_iteration_after_its_last():
    got = records([iteration(i) for i in range(7)])
    assert [(r.window, r.first_iteration, r.iterations) for r in got] == [(0, 0, 3), (1, 3, 3)]


def test_the_first_window_is_short_and_a_plan_does_not_make_it_the_second():
    meter = WindowMeter(rank=1, length=5)
    plans = [0, 0] + [1] * 10
    got = [meter.add(iteration(i, plan=plan)) for i, plan in enumerate(plans)]
    assert [(r.window, r.first_iteration, r.iterations) for r in got if r] == [(0, 2, FIRST_WINDOW), (1, 5, 5)]


def test_iterations_with_too_few_samples_are_in_a_window_only_where_it_has_no_others():
    def cuts(short: str) -> list[tuple[int, int, int]]:
        rows = [iteration(i, is_short=one == "s") for i, one in enumerate(short)]
        return [(r.window, r.first_iteration, r.iterations) for r in records(rows)]

    assert cuts("sssssss") == [(0, 0, 3), (1, 3, 3)]
    assert cuts("s.ss..s") == [(0, 1, 3)]
    assert cuts("ss....s") == [(0, 2, 3)]
    assert cuts("...ssss") == [(0, 0, 3), (1, 3, 3)]


def test_the_size_of_the_data_is_in_every_window():
    assert [r.data_size for r in records([iteration(i, data_size=400) for i in range(4)])] == [400]


def test_a_newcomer_cuts_the_windows_of_the_others():
    """It enters with iteration 6, which is in no window. Others wait since then, which is no change."""
    rows = [iteration(i, waited=(0.0, 1.0 if i > 7 else 0.0)) for i in range(16)]
    old, new = WindowMeter(rank=0, length=4), WindowMeter(rank=1, length=4)
    first = [old.add(row) for row in rows[:6]]
    assert [record.window for record in first if record] == [0]
    for meter in (old, new):
        meter.begin(old.next_window)
    cuts = [[(r.window, r.first_iteration, r.iterations) for r in map(m.add, rows[7:]) if r] for m in (old, new)]
    assert cuts == [[(1, 7, 4), (2, 11, 4)]] * 2


def test_a_new_plan_begins_a_new_window_and_nothing_is_mixed():
    plans = [0, 0, 0, 0, 1, 1, 1, 1, 1]
    got = records([iteration(i, plan=plan) for i, plan in enumerate(plans)])
    assert [(r.window, r.first_iteration, r.plan_version, r.batch_size) for r in got] == [(0, 0, 0, 10), (1, 4, 1, 11)]


def test_means_are_weighted_by_the_units_that_the_script_gives():
    rows = [
        iteration(0, loss=1.0, correct=30.0, loss_weight=60.0, units=(60.0, 40.0)),
        iteration(1, loss=4.0, correct=20.0, loss_weight=20.0, units=(20.0, 40.0)),
        iteration(2, loss=math.nan, correct=0.0, loss_weight=0.0, units=(0.0, 40.0)),
    ]
    (record,) = records([*rows, iteration(3)])
    assert (record.units, record.global_units) == (80.0, 200.0)
    assert (record.samples, record.global_samples) == (30, 90)
    assert record.loss == pytest.approx((60 * 1 + 20 * 4) / 80)
    assert record.accuracy == pytest.approx(50 / 80)
    (plain,) = records([iteration(number) for number in range(4)])
    assert math.isnan(plain.units) and math.isnan(plain.global_units)


def test_means_are_weighted_by_samples_and_unknown_stays_unknown():
    rows = [iteration(0, loss=1.0, samples=30), iteration(1, loss=4.0), iteration(2, samples=0, correct=0.0)]
    (record,) = records([*rows, iteration(3)])
    assert record.loss == pytest.approx((30 * 1 + 10 * 4) / 40)
    assert record.accuracy == pytest.approx(10 / 40)
    (record,) = records([iteration(i, correct=float("nan")) for i in range(4)])
    assert record.accuracy != record.accuracy


def test_a_stall_flags_its_window():
    assert [r.flagged for r in records([iteration(i, stalled=i == 4) for i in range(7)])] == [False, True]


def test_iterations_in_which_a_worker_runs_out_of_samples_are_in_no_window():
    """Others wait for longer in them, which is no change of the cluster."""
    rows = [iteration(i, is_short=5 <= i < 9, waited=(3.0 if 5 <= i - 1 < 9 else 0.1, 0.1)) for i in range(14)]
    meter = WindowMeter(rank=1, length=4)
    got = [record for record in map(meter.add, rows) if record]
    assert [(r.first_iteration, r.iterations) for r in got] == [(0, FIRST_WINDOW), (3, 4)]
    assert got[1].epoch == 10 / 4, "iterations 3, 4, 9 and 10"


def test_a_batch_is_short_where_a_worker_has_less_than_half_of_its_plan():
    def is_short(sizes, tokens=None):
        return Batch(0, Plan(1, (8, 5)), Step(Cursor(), sizes, Cursor(), tokens), 0, 0, None).is_short

    assert is_short((8, 0)) and is_short((3, 5)) and is_short((1, 1))
    assert not is_short((8, 5)) and not is_short((4, 2)) and not is_short((8, 0), tokens=(8, 0))


def test_cpu_time_and_garbage_collection_leave_pauses_out_and_a_window_has_those_of_its_iterations(monkeypatch):
    clock = {"wall": 0.0, "cpu": 0.0, "gc": 3.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["wall"])
    monkeypatch.setattr("time.process_time", lambda: clock["cpu"])
    watch = Stopwatch(lambda: clock["gc"])
    clock.update(wall=10.0, cpu=5.0, gc=4.0)
    with watch.paused():
        clock.update(wall=110.0, cpu=105.0, gc=54.0)
    clock.update(wall=120.0, cpu=110.0, gc=54.5)
    assert watch.end() == (Times(0.0, 20.0, 0.0, 20.0, 10.0, 1.5),)
    clock.update(wall=121.0, cpu=111.0)
    assert watch.end() == (Times(0.0, 1.0, 0.0, 1.0, 1.0, 0.0),)
    (record,) = records([iteration(i) for i in range(4)])
    assert record.cpu_ratio == pytest.approx(0.5 / 1.25)
    assert record.gc_s == pytest.approx(3 * 0.125)
    assert record.summed_bytes_per_s == pytest.approx(3 * 100 / record.duration_s)


def test_a_pause_before_the_batch_is_neither_input_nor_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"wall": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["wall"])
    watch = Stopwatch(lambda: 0.0)
    clock["wall"] = 1.0
    with watch.paused():  # an evaluation between two passes
        clock["wall"] = 101.0
    clock["wall"] = 103.0
    watch.batch_ready()
    clock["wall"] = 107.0
    with watch.paused():
        clock["wall"] = 207.0
    assert watch.compute_so_far_s() == 4.0
    assert watch.end()[0][:4] == (3.0, 4.0, 0.0, 7.0)


def test_waiting_for_a_sum_before_the_batch_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"wall": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["wall"])
    watch = Stopwatch(lambda: 0.0)
    clock["wall"] = 1.0
    with watch.blocked():
        clock["wall"] = 6.0
    clock["wall"] = 7.0
    watch.batch_ready()
    clock["wall"] = 10.0
    with watch.blocked():
        clock["wall"] = 11.0
    assert watch.end()[0][:4] == (2.0, 3.0, 6.0, 11.0)
    watch.batch_ready()
    clock["wall"] = 12.0
    assert watch.end()[0][:4] == (0.0, 1.0, 0.0, 1.0)


SLOW = 6  # iteration from which on worker 1 is slow and worker 0 waits for it


def change_of_cluster(iterations, length=10, slow_from=SLOW, first=0, slow_until=1000):
    meter = WindowMeter(rank=0, length=length)
    rows = []
    for i in range(first, iterations):
        slow = slow_from <= i - 1 < slow_until  # a tail tells of the iteration before
        waited, lasted_s = ((3.0, 0.1), 4.0) if slow else ((0.1, 0.1), 1.25)
        rows.append(meter.add(iteration(i, plan=i >= 1, waited=waited, lasted_s=lasted_s, loss=float(i))))
    return [(r.first_iteration, r.iterations, r.loss) for r in rows if r]


def test_a_window_in_which_the_cluster_changes_ends_and_is_about_what_came_since():
    first, changed, after = change_of_cluster(iterations=21)
    assert first == (1, FIRST_WINDOW, 2.0)
    assert changed == (SLOW, LASTING, SLOW + 1.0), "nothing of the cluster before"
    assert after == (SLOW + LASTING, 10, SLOW + LASTING + 4.5), "the cluster that is slow is the one it is in now"


def test_a_change_across_the_end_of_a_window_waits_for_iterations_of_its_own():
    """Of the three slow iterations one is in the window before, which was complete."""
    slow_from = 1 + FIRST_WINDOW + 10 - 1
    _, full, changed = change_of_cluster(iterations=20, slow_from=slow_from)
    assert full == (4, 10, 8.5)
    assert changed == (slow_from + 1, LASTING, slow_from + 2.0)


def test_one_slow_iteration_is_no_change_and_two_are_none():
    for lasting in (1, 2):
        windows = change_of_cluster(iterations=25, slow_until=SLOW + lasting)
        assert [length for _, length, _ in windows] == [FIRST_WINDOW, 10, 10]


def test_the_noise_of_measured_iterations_is_averaged_and_the_rest_does_not_count():
    rows = [iteration(i, global_grad_sq=1.0 if i == 1 else float("nan")) for i in range(4)]
    (record,) = records(rows)
    assert record.noise_variance == pytest.approx(10 * (4.0 - 1.0) + 20 * (2.0 - 1.0))
    assert record.noise_signal == pytest.approx(1.0 - 50.0 / 30)
    (record,) = records([iteration(i, global_grad_sq=float("nan")) for i in range(4)])
    assert math.isnan(record.noise_variance) and math.isnan(record.noise_signal)


def test_the_spread_of_the_accuracy_and_the_place_in_the_data_are_told():
    (record,) = records([iteration(i, correct=c) for i, c in enumerate((2.0, 4.0, 6.0, 0.0))])
    assert record.accuracy_std == pytest.approx(((0.2**2 + 0.2**2) / 3) ** 0.5)
    assert record.epoch == 0.5


def test_one_measured_norm_has_no_spread():
    def spread(measured: int) -> float:
        (record,) = records([iteration(i, grad_sq=4.0 + i if i < measured else float("nan")) for i in range(4)])
        return record.grad_norm_std

    assert math.isnan(spread(1)), "not 0, which would say that gradients are alike"
    assert spread(2) == pytest.approx((5**0.5 - 2) / (5**0.5 + 2))
