"""`dynamix bench` with simulated cells: what it runs, prints and returns."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import cli as bench
from benchmarks.suite import cleanup, machine_lock, runner
from benchmarks.suite.machine_lock import exclusive_machine
from benchmarks.suite.results import CellName, write_result
from benchmarks.testbed.commands import BedError
from dynamix_ps.errors import EnvironmentNotReady, JobFailed, UsageError
from dynamix_ps.launch.job.interrupts import Interrupts
from tests.unit.benchmarks.suite.fake_cell import result

GRID = """\
name: mine
seeds: [1, 2]
scenarios: [homogeneous]
workloads: [fashion-cnn]
contenders: [pid, ppo, lbb]
"""


class Bench:
    """Runs the command in an empty folder. `ends` says how a contender's cells end; "interrupt" as Ctrl-C would."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        (folder / "mine.yaml").write_text(GRID)
        self.grid = str(folder / "mine.yaml")
        self.ends: dict[str, str] = {}
        self.ran: list[str] = []
        self.reports = 0

    def run(self, *options: str) -> tuple[object, str]:
        self.ran.clear()
        done = CliRunner().invoke(
            bench.command, ["run", self.grid, "--out", str(self.out), *options], standalone_mode=False
        )
        return done.exception or done.return_value, done.output


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    here = Bench(tmp_path)

    class Played(runner.CellRunner):
        def run(self, cell: CellName, workload: runner.Judged):  # type: ignore[no-untyped-def]
            ends = here.ends.get(cell.contender, "done")
            if ends == "interrupt":
                interrupts: Interrupts = self._interrupts
                interrupts.count, interrupts.first = 1, "SIGINT"
                return None
            here.ran.append(cell.contender)
            self._folder.log_file(cell).write_text("training\nthat was it\n")
            ended = result(cell, ends)  # type: ignore[arg-type]
            write_result(self._folder.cells, ended)
            return ended

    def report(folder: object, console: object) -> None:
        here.reports += 1

    monkeypatch.setattr(machine_lock, "_NAME", f"\0{uuid.uuid4()}")
    monkeypatch.setattr(runner, "CellRunner", Played)
    monkeypatch.setattr(bench, "_report", report)
    monkeypatch.setattr(cleanup, "remove_leftovers", lambda: ["test bed x"])
    return here


def test_a_whole_grid_runs_once_and_is_reported(suite: Bench) -> None:
    code, output = suite.run()
    assert (code, suite.reports) == (0, 1)
    assert suite.ran == ["pid", "ppo", "lbb", "ppo", "lbb", "pid"]
    assert "6 cells, 0 done, 6 to run" in output
    assert "[6/6] homogeneous--fashion-cnn--pid--s2: 80 % after 12.0 s" in output
    code, output = suite.run()
    assert (code, suite.ran, suite.reports) == (0, [], 2)
    assert "6 cells, 6 done, 0 to run" in output


def test_failed_cells_are_shown_and_tried_again_those_that_timed_out_are_not(suite: Bench) -> None:
    suite.ends = {"ppo": "failed", "pid": "timed out"}
    error, output = suite.run()
    assert isinstance(error, JobFailed)
    assert "2 of 6 cells failed" in str(error)
    assert str(suite.out / "logs" / "homogeneous--fashion-cnn--ppo--s1.log") in str(error)
    assert "because; the end of" in output
    assert "    that was it\n" in output
    assert suite.reports == 1  # of those that did not
    suite.ends = {}
    assert suite.run()[0] == 0
    assert suite.ran == ["ppo", "ppo"]


def test_an_interrupt_ends_the_run_which_goes_on_the_next_time(suite: Bench) -> None:
    suite.ends = {"lbb": "interrupt"}
    code, output = suite.run()
    assert (code, suite.ran, suite.reports) == (130, ["pid", "ppo"], 0)
    assert "removed test bed x" in output
    assert "interrupted by SIGINT; the same command goes on" in output
    suite.ends = {}
    assert suite.run()[0] == 0
    assert suite.ran == ["lbb", "ppo", "lbb", "pid"]


def test_a_grid_waits_while_another_one_is_measured(suite: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as other:
        other.enter_context(exclusive_machine(lambda: pytest.fail("nobody else is here")))
        monkeypatch.setattr("benchmarks.suite.machine_lock.time.sleep", lambda _: other.close())
        code, output = suite.run()
    assert (code, len(suite.ran)) == (0, 6)
    assert output.startswith("another grid runs on this machine")


def test_some_cells_alone(suite: Bench) -> None:
    assert suite.run("--only", "*--pid--*", "--only", "*--s2")[0] == 0
    assert suite.ran == ["pid", "ppo", "lbb", "pid"]
    error, _ = suite.run("--only", "pid")
    assert isinstance(error, UsageError)
    assert "fits no cell of grid mine; homogeneous--fashion-cnn--pid--s1 is one" in str(error)


def test_what_is_listed_follows_the_folder_or_the_grid(suite: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.run("--only", "*--pid--s1")
    listed = functools.partial(CliRunner().invoke, bench.command, standalone_mode=False, env={"COLUMNS": "160"})
    assert "1 done" in listed(["list", str(suite.out)]).output
    assert "0 done" in listed(["list", suite.grid]).output
    assert "h-level-10" in listed(["list"]).output


def test_what_cannot_be_removed_stops_clean_and_is_a_warning_after_a_run(
    suite: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Sequence[str]:
        raise EnvironmentNotReady("no permission")

    monkeypatch.setattr(cleanup, "remove_leftovers", refuse)
    suite.ends = {"pid": "interrupt"}
    code, output = suite.run()
    assert code == 130
    assert "warning: no permission" in output
    assert isinstance(
        CliRunner().invoke(bench.command, ["clean"], standalone_mode=False).exception, EnvironmentNotReady
    )


def test_leftovers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "release_stale", lambda: ["abcd1234"])
    monkeypatch.setattr(cleanup, "remove_left_over", lambda: ["dxbed.1.2.3"])
    output = CliRunner().invoke(bench.command, ["clean"], standalone_mode=False).output
    assert output.startswith("removed run abcd1234")
    assert output.endswith("removed test bed dxbed.1.2.3\n")

    def refuse() -> Sequence[str]:
        raise BedError("ip netns delete: not permitted")

    monkeypatch.setattr(cleanup, "remove_left_over", refuse)
    with pytest.raises(EnvironmentNotReady, match="not permitted; try as root"):
        cleanup.remove_leftovers()
