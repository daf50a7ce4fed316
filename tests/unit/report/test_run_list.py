"""`dynamix runs`: what it says of a run by the little that it reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.errors import UsageError
from dynamix_ps.report.run_list import SILENT_S, runs_in
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import append, config, started, whole_run, window


def new(base: Path, name: str) -> RunFolder:
    folder = RunFolder(base / name)
    folder.make()
    write_manifest(folder, config(3), [])
    return folder


def test_the_newest_comes_first_with_what_its_summary_says(tmp_path: Path) -> None:
    for name, exit_code in (("b-20260102T030405Z-1", 0), ("a-20260103T030405Z-2", 4)):
        whole_run(new(tmp_path, name), windows=20)
        write_summary(RunFolder(tmp_path / name), config(3), Outcome(exit_code, "worker-1 was killed\nhere", "none"))
    (tmp_path / "latest").symlink_to("a-20260103T030405Z-2")
    (tmp_path / "other").mkdir()
    newest, before = runs_in(tmp_path)
    assert [newest.folder.path.name, before.folder.path.name] == ["a-20260103T030405Z-2", "b-20260102T030405Z-1"]
    assert (newest.end, before.end) == ("exit code 4: worker-1 was killed", "finished")
    assert (before.policy, before.workers) == ("proportional", 3)
    assert before.samples_per_s and before.samples_per_s > 1000
    assert before.gain and before.gain > 1


def test_of_a_run_without_an_end_the_newest_windows_count_while_it_goes_on(tmp_path: Path) -> None:
    folder = new(tmp_path, "mine")
    for rank in range(2):
        append(folder.worker_file(rank), started(rank), window(rank, 0, 8), window(rank, 1), {"kind": "paused"})
    (run,) = runs_in(tmp_path)
    assert (run.end, run.workers, run.policy) == ("goes on", 2, "proportional")
    assert run.samples_per_s == 2 * 64 * 20
    assert run.goes_on
    (run,) = runs_in(tmp_path, now_s=os.stat(folder.worker_file(0)).st_mtime + SILENT_S + 5)
    assert (run.end, run.samples_per_s) == ("no end: stopped or killed", None)


def test_files_that_cannot_be_read_leave_their_values_unknown(tmp_path: Path) -> None:
    folder = new(tmp_path, "a-20261399T030405Z-2")
    folder.summary_json.write_text('{"exit_code": 0, "samples_per_s": "fast", "gain": 3, "workers": []}')
    folder.worker_file(0).write_bytes(b'\x00{"kind": "window"}\n{"kind": "window", "samples": {}}\n')
    (run,) = runs_in(tmp_path)
    assert (run.end, run.samples_per_s, run.gain, run.workers) == ("finished", None, None, None)
    folder.summary_json.write_text("no JSON")
    (run,) = runs_in(tmp_path)
    assert (run.end, run.samples_per_s) == ("goes on", None)


def test_a_wrong_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the folder that holds run folders"):
        runs_in(tmp_path / "none")
    folder = new(tmp_path, "a")
    with pytest.raises(UsageError, match="is a run folder itself"):
        runs_in(folder.path)


def test_the_command_shows_a_line_per_run(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["runs", str(tmp_path)]).output == f"no runs in {tmp_path}\n"
    folder = new(tmp_path, "b-20260102T030405Z-1")
    whole_run(folder)
    write_summary(folder, config(3), Outcome(4, "[bold]\x1b[31m", "none"))
    head, row = CliRunner().invoke(cli, ["runs", str(tmp_path)], catch_exceptions=False).output.splitlines()
    assert head.split() == ["run", "policy", "workers", "samples/s", "gain", "end"]
    assert row.split()[:3] == ["b-20260102T030405Z-1", "proportional", "3"]
    assert "[bold]" in row and "\x1b" not in row
