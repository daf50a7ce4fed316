"""The launcher's periodic work: the placement gets seconds of training, without pauses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dynamix_ps.launch.emulation.speeds import Emulation
from dynamix_ps.launch.job import observe
from dynamix_ps.launch.job.observe import Observer
from dynamix_ps.launch.job.shown_output import PrefixedOutput
from dynamix_ps.launch.roles.placement import Speeds, ThisMachine
from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from tests.unit.synthetic_run import START_S, append, config, new_folder, started


class Recording(ThisMachine):
    def __init__(self) -> None:
        self.told_s: list[float] = []

    def tick(self, trained_s: float, speeds: Speeds) -> None:
        self.told_s.append(trained_s)


def test_a_pause_does_not_count_for_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, placement, now_s = new_folder(tmp_path), Recording(), [START_S]
    monkeypatch.setattr(observe.time, "time", lambda: now_s[0])
    recorder = Recorder(folder, config(2), clock=lambda: START_S)
    console = Console(file=io.StringIO())
    live, output = LiveView(recorder.state, console), PrefixedOutput(console, ())
    observer = Observer(recorder, live, Emulation("none", "", (1.0, 1.0)), placement, output)

    def look(after_s: float) -> None:
        now_s[0] = START_S + after_s
        observer()

    look(1.0)
    assert placement.told_s == []  # nobody trains yet
    append(folder.worker_file(0), started(0))
    append(folder.worker_file(1), started(1))
    look(2.0)
    append(folder.worker_file(0), {"kind": "paused", "rank": 0, "time_s": START_S + 5.0})
    look(5.5)
    look(8.0)
    append(folder.worker_file(0), {"kind": "resumed", "rank": 0, "time_s": START_S + 9.0})
    look(10.0)
    recorder.close()
    assert placement.told_s == [0.0, 3.0, 3.0, 4.0]
