"""Lines with values that no role writes: recorder, summary and report leave them out, and count each once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynamix_ps.rehearsal.outcome import read_outcome
from dynamix_ps.report.page.run_page import write_page
from dynamix_ps.report.plots.history import read_history
from dynamix_ps.report.plots.plots import PLOTS, draw_plots
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import report_run
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import (
    START_S,
    append,
    config,
    evaluation,
    finished,
    link,
    links,
    plan,
    plan_applied,
    role,
    started,
    window,
)

OF_A_WORKER = [
    started(0) | {"rank": "0"},
    started(0) | {"rank": [0]},
    started(0) | {"rank": -1},
    started(0) | {"rank": 10**12},
    started(0) | {"iteration": None},
    started(0) | {"batch_size": {}},
    started(0) | {"time_s": 10**400},
    window(0, 0) | {"samples": None},
    window(0, 0) | {"duration_s": "1"},
    window(0, 0) | {"global_loss": []},
    window(0, 0) | {"network_source": {"a": 1}},
    window(0, 0) | {"global_samples": 10**30},
    window(0, 0) | {"iterations": "many"},
    plan_applied(0, 1, [1]),
    plan_applied(0, 1, [1, 2, 3]),
    plan_applied(0, 1, [1, 2]) | {"version": "1"},
    plan_applied(0, 1, [1, 2]) | {"batch_sizes": [1, None]},
    evaluation(1.0, 0.5) | {"values": 3},
    evaluation(1.0, 0.5) | {"values": {"accuracy": "0.5"}},
    evaluation(1.0, 0.5) | {"iteration": None},
    finished(0, 40, 100, 2.0) | {"samples": None},
    finished(0, 40, 100, 2.0) | {"train_s": "1"},
    links(0, [link(0)]) | {"links": None},
    {"kind": "links", "time_s": START_S},
    {"kind": "degraded", "what": ["data"], "time_s": START_S},
    {"kind": "lost", "role": "worker", "slot": "0", "reason": "x", "time_s": START_S},
    {"kind": "workers_entered", "entered": [9], "iteration": 1, "workers": 2, "time_s": START_S},
    {"kind": "stall", "missing": 3, "iteration": 0, "waited_s": 1.0, "rank": 0, "time_s": START_S},
    role("server-0") | {"system": None},
    role("server-0") | {"flows": [{"local": 1, "remote": 2}]},
]
OF_THE_ARBITRATOR = [
    plan(1, [1]),
    plan(1, [1, 2]) | {"proposed": [1]},
    plan(1, [1, 2]) | {"version": None},
    plan(1, [1, 2]) | {"reward": "high"},
    plan(1, [1, 2]) | {"decision_ms": []},
    links(0, [link("0")]),
    links(0, [link(-3)]),
    links(0, [link(0, slow=3)]),
    links(0, [], [{"name": 3}]),
    {"kind": "members", "workers": 3, "servers": 1, "took_s": 1.0, "time_s": START_S},
]


def text_of(line: dict[str, Any]) -> str:
    return json.dumps(line)[:80]


def run_with(folder: RunFolder, of_a_worker: dict[str, Any] | None, of_the_arbitrator: dict[str, Any] | None) -> None:
    for rank in (0, 1):
        damaged = [of_a_worker] if of_a_worker and rank == 0 else []
        evaluated = [evaluation(3.0, 0.5)] if rank == 0 else []
        before = (started(rank), window(rank, 0), *damaged, plan_applied(rank, 1, [60, 68]), window(rank, 1))
        append(folder.worker_file(rank), *before, *evaluated, finished(rank, 40, 100, 2.0))
    append(folder.journal_file, *([of_the_arbitrator] if of_the_arbitrator else []), plan(1, [60, 68]))


def check(folder: RunFolder) -> None:
    recorder = Recorder(folder, config(2), clock=lambda: START_S)
    recorder.poll()
    recorder.poll()
    recorder.close()
    events = [json.loads(line) for line in folder.events_file.read_text().splitlines()]
    left_out = [event for event in events if event["kind"] in ("unreadable_line", "damaged_lines")]
    assert len(left_out) == 1, left_out
    assert left_out[0].get("count", 1) == 1
    read_history(folder, config(2))
    folder.write_config(config(2))
    summary = report_run(folder).summary
    assert summary["iterations"] == 40
    assert summary["batch_sizes_end"] == [60, 68]
    assert summary["final_accuracy"] == 0.5
    assert summary["workers"] == 2


@pytest.fixture
def nothing_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take a second each time, and show what `read_history` gives."""
    monkeypatch.setattr("dynamix_ps.report.run_report.draw_plots", lambda *_: [])


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize("line", OF_A_WORKER, ids=text_of)
def test_a_line_of_a_worker(folder: RunFolder, line: dict[str, Any]) -> None:
    run_with(folder, line, None)
    check(folder)
    outcome = read_outcome(folder)
    assert outcome is not None and len(outcome.curve) == 0  # its evaluations are not those of a rehearsal


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize("line", OF_THE_ARBITRATOR, ids=text_of)
def test_a_line_of_the_arbitrator(folder: RunFolder, line: dict[str, Any]) -> None:
    run_with(folder, None, line)
    check(folder)


@pytest.mark.slow
def test_all_plots_are_drawn_in_spite_of_all_these_lines(folder: RunFolder) -> None:
    run_with(folder, None, None)
    append(folder.worker_file(0), *OF_A_WORKER)
    append(folder.journal_file, *OF_THE_ARBITRATOR)
    Recorder(folder, config(2), clock=lambda: START_S).close()
    assert {file.stem for file in draw_plots(folder, config(2))} == PLOTS.keys()
    assert write_page(folder, config(2), write_summary(folder, config(2), Outcome(0, "all workers finished", "none")))


def test_a_report_without_a_cluster_file_survives_damaged_first_lines(folder: RunFolder) -> None:
    append(folder.worker_file(0), {"kind": "started"}, started(0) | {"rank": -1}, started(0), finished(0, 40, 100, 2.0))
    assert report_run(folder).summary["workers"] == 1


def test_a_role_cannot_speak_as_the_launcher(folder: RunFolder) -> None:
    end = {"kind": "end", "source": "launcher", "exit_code": 0, "reason": "all is well", "time_s": START_S}
    append(folder.worker_file(0), started(0), end)
    Recorder(folder, config(1), clock=lambda: START_S).close()
    folder.write_config(config(1))
    assert report_run(folder).summary["reason"] != "all is well"
