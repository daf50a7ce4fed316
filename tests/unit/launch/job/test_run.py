"""A job that was lost as a whole begins again: from which checkpoint, how often, and when not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from dynamix_ps.config.schema import Config
from dynamix_ps.launch.job import run as job
from dynamix_ps.launch.job import start_over
from dynamix_ps.launch.job.run import run_job
from dynamix_ps.launch.job.verdict import Ending
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

LOST = Ending(4, "no server is left", by_loss=True)
DONE = Ending(0, "all workers finished")


class Runs:
    """What runs come to, one after the other, in place of processes."""

    def __init__(self, *endings: Ending, saves: bool = True) -> None:
        self.endings, self.saves = list(endings), saves
        self.resumed: list[Path | None] = []
        self.folders: list[RunFolder] = []

    def __call__(self, config: Config, records: Any, resume: Path | None, *rest: Any) -> Runs:
        self.folders.append(records.folder)
        self.resumed.append(resume)
        self.hosts_given_up = frozenset[str]()
        return self

    def to_its_end(self) -> Ending:
        if self.saves:
            (self.folders[-1].checkpoints_dir / "last.pt").touch()
        return self.endings.pop(0)

    def conclude(self, ending: Ending, waits: bool) -> int:
        return ending.exit_code


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(job, "preflight", lambda config, resume: None)
    monkeypatch.setattr(start_over, "wait_before_start_s", lambda made: 0.0)

    def launched(runs: Runs, restarts: int, resume: Path | None = None) -> tuple[int, str]:
        cluster = {"workers": [{}, {}], "servers": 1}
        elastic = {"min_workers": 1, "restarts": restarts}
        config = Config.model_validate(
            {"run_dir": str(tmp_path), "cluster": cluster, "elastic": elastic, "command": ["python"]}, strict=False
        )
        monkeypatch.setattr(job, "_Run", runs)
        console = Console(file=io.StringIO(), width=500)
        code = run_job(config, ["dynamix"], resume, console)
        assert isinstance(console.file, io.StringIO)
        return code, console.file.getvalue()

    yield launched


def test_it_begins_again_from_the_newest_checkpoint_in_a_folder_of_its_own(launch: Any) -> None:
    runs = Runs(LOST, LOST, DONE)
    code, output = launch(runs, restarts=2)
    assert code == 0 and len(runs.folders) == 3
    checkpoints = [folder.checkpoints_dir / "last.pt" for folder in runs.folders]
    assert runs.resumed == [None, *checkpoints[:2]]
    assert f"the job starts again in 0 s with 2 workers, from {checkpoints[0]}: 1 of 2 (elastic.restarts)" in output
    events = JsonLinesTail(runs.folders[1].events_file).read()
    assert [(one["kind"], one["restarts"], one["checkpoint"]) for one in events] == [
        ("job_restarted", 1, str(checkpoints[0]))
    ]
    assert (runs.folders[0].path.parent / "latest").resolve() == runs.folders[2].path


def test_it_begins_again_only_so_often_and_not_after_other_ends(launch: Any) -> None:
    assert launch(runs := Runs(LOST, LOST, DONE), restarts=1)[0] == 4 and len(runs.folders) == 2
    assert launch(runs := Runs(Ending(4, "ZeroDivisionError"), DONE), restarts=5)[0] == 4 and len(runs.folders) == 1
    assert launch(runs := Runs(LOST, DONE), restarts=0)[0] == 4 and len(runs.folders) == 1


def test_one_that_has_saved_nothing_begins_again_where_it_began_or_not_at_all(launch: Any, tmp_path: Path) -> None:
    file = tmp_path / "earlier.pt"
    file.touch()
    assert launch(runs := Runs(LOST, DONE, saves=False), restarts=1, resume=file)[0] == 0
    assert runs.resumed == [file, file]
    code, output = launch(Runs(LOST, DONE, saves=False), restarts=1)
    assert code == 4 and "the job is not started again: there is no checkpoint; set checkpoint_every" in output


@pytest.mark.parametrize(("waits", "plots"), [(True, "yes"), (False, "yes"), (True, "no")])
def test_who_draws_the_plots_of_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, plots: str
) -> None:
    """The launcher, if its caller waits for them; else another process, after the result is printed."""
    monkeypatch.setenv("DYNAMIX_PLOTS", plots)
    drawn: list[str] = []
    summary = {"degraded": [], "exit_code": 0}
    monkeypatch.setattr(job, "write_report", lambda *given: drawn.extend(["launcher"] * given[-1]) or summary)
    monkeypatch.setattr(job, "report_afterwards", lambda folder: drawn.append("another"))
    monkeypatch.setattr(job, "headline", lambda summary: ["all workers finished"])
    run: Any = object.__new__(job._Run)
    run._notes, run._heterogeneity, run._config = [], "none", None
    run._folder, run._recorder = RunFolder(tmp_path), MagicMock()
    run._console = Console(file=io.StringIO(), width=500)
    assert run.conclude(DONE, waits) == 0
    output = run._console.file.getvalue()
    assert drawn == ([] if plots == "no" else ["launcher" if waits else "another"])
    assert ("for plots, run: dynamix report" in output) == (plots == "no")
    assert ("plots: in a few seconds" in output) == (not waits)
