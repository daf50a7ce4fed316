"""Seconds of garbage collection count from the collector's start to its end, and reach all exports of a window."""

from __future__ import annotations

import csv
import gc
from pathlib import Path

import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import View
from dynamix_ps.report.exposition import gauges
from dynamix_ps.report.metric_rows import metric_rows
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.run_record.run_folder import RunFolder
from tests.control_plane import record
from tests.unit.report.test_tensorboard import series
from tests.unit.synthetic_run import append, config, new_folder, started, window
from worker_hooks.observe.stopwatch import GarbageClock, garbage_s


@pytest.fixture
def clock() -> GarbageClock:
    made = GarbageClock()
    gc.callbacks.remove(made._see)  # the test calls it
    return made


def test_a_collection_counts_its_time_and_nothing_between(clock: GarbageClock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock_s)
    for phase, now_s in (("start", 10.0), ("stop", 10.25), ("start", 50.0), ("stop", 50.5)):
        clock_s = now_s
        clock._see(phase, {})
    assert clock.seconds == 0.75


@pytest.mark.slow
def test_the_process_has_one_clock_however_often_it_is_asked() -> None:
    before = garbage_s()
    known = len(gc.callbacks)
    gc.collect()
    assert garbage_s() > before
    assert len(gc.callbacks) == known


def test_it_is_in_every_export_of_a_window(tmp_path: Path) -> None:
    folder: RunFolder = new_folder(tmp_path)
    append(folder.worker_file(0), started(0), window(0, 0, gc_s=0.25), window(0, 1))  # the second is unknown
    Recorder(folder, config(1)).close()
    with folder.windows_csv.open(newline="") as file:
        assert [row["gc_s"] for row in csv.DictReader(file)] == ["0.25", ""]
    assert [value for _, _, value in series(folder.tensorboard_dir / "worker-0", "worker/gc_s")] == [0.25]
    view = View(0, Plan(0, (64,)), ((32, 1024),), (record(gc_s=0.25),))
    assert ("dynamix_worker_gc_seconds", (("worker", "0"),), 0.25) in list(gauges(view, None, 1.0))
    (row,) = (row for row in metric_rows("windows.csv") if row.name == "gc_s")
    assert row.exported_as == ("windows.csv", "TensorBoard worker/gc_s", "Prometheus dynamix_worker_gc_seconds")
