"""Traces: what is laid, how it evaporates, and what is read in the sum of all workers' traces."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.stigmergy.settings import StigmergySettings
from dynamix_ps.policy.stigmergy.traces import Traces, field_of

SETTINGS = StigmergySettings(evaporation=0.5, alarm=2.0, calming=0.35)
NOBODY, EVERYBODY = np.zeros(2, dtype=bool), np.ones(2, dtype=bool)


def laid(*windows: tuple[float, float], alarmed: bool = False) -> Traces:
    """Two workers whose loads are those of `windows`, measured in all of them."""
    traces = Traces(2, SETTINGS)
    for loads in windows:
        alarms = EVERYBODY if alarmed else NOBODY
        traces.lay(np.array(loads), np.array([0.1, 0.2]), np.array([0.01, 0.03]), EVERYBODY, alarms)
    return traces


def test_the_first_window_counts_in_full() -> None:
    field = field_of(laid((100, 50)).rows)
    assert field.rates_per_s.tolist() == [100, 50]
    assert field.fixed_s.tolist() == pytest.approx([0.1, 0.2])
    assert field.transfer_s.tolist() == pytest.approx([0.01, 0.03])


def test_older_windows_evaporate() -> None:
    field = field_of(laid((100, 50), (200, 50), (200, 50), (200, 50)).rows)
    assert field.rates_per_s.tolist() == pytest.approx([200 - 100 / 15, 50])  # weights 1, 2, 4, 8
    assert field.presence.tolist() == pytest.approx([15 / 16] * 2)


def test_with_an_alarm_the_newest_values_count_alone() -> None:
    assert field_of(laid((100, 50), (200, 60), alarmed=True).rows).rates_per_s.tolist() == pytest.approx([200, 60])


def test_an_alarm_evaporates() -> None:
    traces = laid((100, 50), alarmed=True)
    assert field_of(traces.rows).alarmed == 2.0
    for _ in range(10):
        traces.lay(np.array([100.0, 50]), np.zeros(2), np.zeros(2), EVERYBODY, NOBODY)
    assert field_of(traces.rows).alarmed == pytest.approx(2 * 0.65**10)


def test_a_worker_that_a_window_has_not_measured_keeps_its_traces() -> None:
    traces = laid((100, 50))
    before = traces.rows.copy()
    traces.lay(np.array([300.0, np.nan]), np.full(2, np.nan), np.zeros(2), NOBODY, EVERYBODY)
    assert np.array_equal(traces.rows, before)


def test_the_sum_has_the_traces_of_each_worker() -> None:
    one, two = Traces(2, SETTINGS), Traces(2, SETTINGS)
    first, second = np.array([True, False]), np.array([False, True])
    values = np.array([100.0, 50]), np.array([0.1, 0.2]), np.array([0.01, 0.03])
    one.lay(*values, first, NOBODY)
    two.lay(*values, second, NOBODY)
    one.lay_lateness(np.array([0.5, 9.0]), first, at_once=True)
    assert one.rows[:, 1].tolist() == two.rows[:, 0].tolist() == [0] * 6
    field = field_of(one.rows + two.rows)
    assert field.rates_per_s.tolist() == [100, 50]
    assert field.lateness.tolist() == [0.5, 0]


def test_who_is_not_in_the_sum_is_not_present() -> None:
    one = Traces(2, SETTINGS)
    one.lay(np.array([100.0, 50]), np.zeros(2), np.zeros(2), np.array([True, False]), EVERYBODY)
    field = field_of(one.rows)
    assert field.present.tolist() == [True, False]
    assert field.rates_per_s.tolist() == [100, 0]
    assert field.alarmed == 2.0


def test_lateness_is_a_mean_over_windows_unless_the_cluster_changes() -> None:
    traces = laid((100, 50))
    own = EVERYBODY
    traces.lay_lateness(np.array([0.4, 0.0]), own, at_once=False)
    assert field_of(traces.rows).lateness.tolist() == [0.2, 0]
    traces.lay_lateness(np.array([0.4, 0.0]), own, at_once=False)
    assert field_of(traces.rows).lateness.tolist() == pytest.approx([0.3, 0])
    traces.lay_lateness(np.array([0.1, 0.0]), own, at_once=True)
    assert field_of(traces.rows).lateness.tolist() == pytest.approx([0.1, 0])


def test_a_move_takes_lateness_away() -> None:
    traces = laid((100, 50))
    traces.lay_lateness(np.array([0.4, -0.2]), EVERYBODY, at_once=True)
    traces.correct_lateness(np.array([-0.3, 0.2]))
    assert field_of(traces.rows).lateness.tolist() == pytest.approx([0.1, 0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("evaporation", 0.0), ("evaporation", 1.1), ("calming", 0), ("crowding", -1), ("alarm", 1e9), ("dead_band", 0.03)],
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected"):
        StigmergySettings(**{name: value})
