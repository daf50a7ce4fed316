"""The report of a run folder, for every way to launch a run and every way it can end."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamix_ps.cli.records import report as report_command
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.errors import UsageError
from dynamix_ps.report import run_report
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import report_afterwards, report_run, write_report
from dynamix_ps.report.summary import Outcome
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import append, config, finished, new_folder, plan, started, whole_run, window


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "draw_plots", lambda folder, config: [])


@pytest.fixture
def by_hand(tmp_path: Path) -> RunFolder:
    """What roles leave that share a folder which they made themselves."""
    folder = RunFolder(tmp_path / "mine")
    folder.workers_dir.mkdir(parents=True)
    folder.roles_dir.mkdir()
    folder.arbitrator_dir.mkdir()
    return folder


@pytest.fixture
def launched(tmp_path: Path) -> RunFolder:
    folder = new_folder(tmp_path)
    folder.config_file.write_text(dump_config(config(3, target_accuracy=0.8)))
    write_manifest(folder, config(3), [])
    return folder


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_by_hand_it_makes_what_a_launcher_would_have_recorded(by_hand: RunFolder, launched: RunFolder) -> None:
    whole_run(by_hand)
    whole_run(launched)
    recorder = Recorder(launched, config(3))
    recorder.close()
    report_run(by_hand)
    report_run(by_hand)  # made anew, not appended to
    for name in ("windows.csv", "links.csv", "servers.csv", "plans.csv"):
        assert (by_hand.path / name).read_text() == (launched.path / name).read_text()
    kinds = [json.loads(line)["kind"] for line in by_hand.events_file.read_text().splitlines()]
    assert kinds.count("finished") == 3 and kinds.count("plan") == 30


def test_another_process_draws_the_plots_and_the_summary_is_else_as_before(launched: RunFolder) -> None:
    whole_run(launched)
    recorder = Recorder(launched, config(3))
    recorder.event("end", exit_code=0, reason="all workers finished", notes=[])
    recorder.close()
    outcome = Outcome(0, "all workers finished", "not recorded", ())
    before = write_report(launched, load_config(launched.config_file), outcome, plots=False)
    assert "overview.png" not in launched.summary_md.read_text()
    assert report_afterwards(launched).wait(60) == 0
    assert "plots/overview.png" in launched.summary_md.read_text()
    assert json.loads(launched.summary_json.read_text()) == before


def test_by_hand_the_roles_tell_the_configuration(by_hand: RunFolder) -> None:
    whole_run(by_hand)
    report = report_run(by_hand)
    summary = report.summary
    assert (summary["workers"], summary["comm"], summary["policy"], summary["mode"]) == (3, "byteps", "ppo", "adapt")
    assert (summary["exit_code"], summary["reason"]) == (0, "all workers finished")
    assert summary["gain"]["samples_per_s_ratio"] > 1
    assert "holds no cluster file" in report.notes[0]


def test_by_hand_the_lines_tell_the_mode(by_hand: RunFolder) -> None:
    append(by_hand.worker_file(0), started(0), finished(0, 20, 1280, 2.0))
    assert report_run(by_hand).summary["mode"] == "off"
    append(by_hand.worker_file(0), window(0, 0, plan_version=0))
    summary = report_run(by_hand).summary
    assert (summary["mode"], summary["policy"]) == ("adapt", "static")
    assert summary["gain"]["text"] == "unknown: one worker waits for nobody"
    begun = {"kind": "started", "time_s": 1.0, "policy": "of-another-package", "workers": 1, "restarts": 0}
    append(by_hand.journal_file, begun, plan(1, [64]) | {"kind": "observed"})
    summary = report_run(by_hand).summary
    assert (summary["mode"], summary["policy"]) == ("observe", "of-another-package")


def test_a_cluster_file_that_is_given_is_kept(by_hand: RunFolder) -> None:
    whole_run(by_hand)
    assert report_run(by_hand, config(3, target_accuracy=0.6)).summary["time_to_accuracy_s"] is not None
    assert load_config(by_hand.config_file).target_accuracy == 0.6
    assert report_run(by_hand).notes == ()
    with pytest.raises(UsageError, match="has its own cluster file"):
        report_run(by_hand, config(3))


def test_a_launched_run_is_told_as_its_launcher_did(launched: RunFolder) -> None:
    whole_run(launched)
    recorder = Recorder(launched, config(3))
    recorder.event("launch", roles=[], emulation="cgroup v1 CPU quota")
    recorder.event("end", exit_code=4, reason="worker-1 was killed", notes=["server-0 was slow to end"])
    recorder.close()
    outcome = Outcome(4, "worker-1 was killed", "cgroup v1 CPU quota", ("server-0 was slow to end",))
    tables = launched.windows_csv.read_text(), launched.events_file.read_text()
    assert report_run(launched).summary == write_report(launched, load_config(launched.config_file), outcome)
    assert (launched.windows_csv.read_text(), launched.events_file.read_text()) == tables


@pytest.mark.parametrize(("age_s", "said"), [(1.0, "still goes on"), (7200.0, "was stopped or killed")])
def test_a_run_without_an_end(launched: RunFolder, age_s: float, said: str) -> None:
    lines = (started(0), window(0, 0, time_s=time.time() - age_s))
    append(launched.worker_file(0), *lines)
    append(launched.worker_file(1), started(1), finished(1, 20, 1280, 2.0))
    summary = report_run(launched).summary
    assert summary["exit_code"] is None
    assert said in summary["reason"]
    assert f"**Not finished**: {summary['reason']}" in launched.summary_md.read_text()


def test_by_hand_a_worker_that_failed_is_the_reason(by_hand: RunFolder) -> None:
    append(by_hand.worker_file(0), started(0), finished(0, 20, 1280, 2.0))
    append(by_hand.worker_file(1), started(1), {"kind": "failed", "rank": 1, "time_s": 1.0, "error": "loss is NaN"})
    summary = report_run(by_hand).summary
    assert (summary["exit_code"], summary["reason"]) == (4, "worker-1 failed: loss is NaN")


def test_nothing_to_report_is_an_error(by_hand: RunFolder) -> None:
    with pytest.raises(UsageError, match="no worker has begun to train"):
        report_run(by_hand)


def test_the_command_tells_result_gain_and_where_to_read_on(by_hand: RunFolder) -> None:
    whole_run(by_hand)
    done = CliRunner().invoke(report_command.command, [str(by_hand.path)], catch_exceptions=False)
    assert done.exit_code == 0
    note, reason, figures, gain, summary, page = done.output.splitlines()
    assert note.startswith("note: ") and reason == "all workers finished"
    assert figures.startswith("600 iterations, ") and "test accuracy" in figures
    assert gain.startswith("gain: 1.") and summary == f"summary: {by_hand.summary_md}"
    assert page == f"page: {by_hand.report_html}" and by_hand.report_html.exists()
