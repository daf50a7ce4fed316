"""Cells as processes: the state after one succeeds, fails, hangs, leaves something behind or is interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.results import CellName, read_result
from benchmarks.suite.runner import CellRunner, tail
from benchmarks.workloads.goal import MetricName
from dynamix_ps.launch.job.interrupts import Interrupts
from tests.launching import ROOT, wait_for
from tests.unit.benchmarks.suite import fake_cell

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Workload:
    thresholds: tuple[float, ...] = (0.7, 0.8)
    limit_s: float = 1000.0
    epochs: int = 1
    metric: MetricName = "accuracy"


def fake_command(cell: CellName, out: Path) -> Sequence[str]:
    names = (cell.scenario, cell.workload, cell.contender, str(cell.seed))
    return (sys.executable, fake_cell.__file__, *names, "--out", str(out))


def named(contender: str) -> CellName:
    return CellName("calm", "small", contender, 1)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Place:
    """A folder with a runner in it. `interrupts` come, one per tick, once the cell has said that it is ready."""

    def __init__(self, folder: GridFolder, held: int) -> None:
        self.folder, self.held = folder, held
        self.interrupts = Interrupts()
        self.interrupts_to_come = 0

    def run(self, contender: str, workload: Workload = Workload(), grace_s: float = 1000.0):  # type: ignore[no-untyped-def]
        def on_tick() -> None:
            if self.interrupts_to_come and tail(self.folder.log_file(named(contender))):
                self.interrupts_to_come -= 1
                self.interrupts.count += 1

        runner = CellRunner(self.folder, (self.held,), self.interrupts, fake_command, on_tick, 0.0, grace_s)
        return runner.run(named(contender), workload)

    def log(self, contender: str) -> list[str]:
        return tail(self.folder.log_file(named(contender)))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = GridFolder(tmp_path / "grid")
    with folder.held(lambda: pytest.fail("nobody else is here")) as held:
        folder.cells.mkdir()
        folder.logs.mkdir()
        yield Place(folder, held)


def test_a_cell_leaves_its_result_and_its_log(place: Place) -> None:
    result = place.run("good")
    assert result == fake_cell.result(named("good"))
    assert place.folder.result(named("good")) == result
    assert place.folder.log_file(named("good")).exists()


def test_a_cell_inherits_what_keeps_others_out(place: Place) -> None:
    def looks_for_it(cell: CellName, out: Path) -> Sequence[str]:
        return (sys.executable, "-c", f"import os; os.fstat({place.held})")

    result = CellRunner(place.folder, (place.held,), place.interrupts, looks_for_it).run(named("looks"), Workload())
    assert result is not None and result.reason == "ended with exit code 0 without a word"


def test_a_time_out_that_the_cell_tells_is_a_result(place: Place) -> None:
    assert place.run("slow").ended == "timed out"


@pytest.mark.parametrize(
    ("contender", "reason"),
    [
        ("dies", "ended with exit code 4; its last line: error: the reason"),
        ("forgets", "ended with exit code 0 without a word"),
    ],
)
def test_a_cell_without_a_result_has_failed_and_says_why(place: Place, contender: str, reason: str) -> None:
    result = place.run(contender, Workload(thresholds=(0.5,)))
    assert (result.ended, result.reason, result.thresholds) == ("failed", reason, (0.5,))
    assert read_result(place.folder.result_file(named(contender))) == result


def test_an_old_result_is_not_taken_for_a_new_one(place: Place) -> None:
    place.folder.result_file(named("forgets")).write_text(
        (place.folder.result_file(place.run("good").name)).read_text()
    )
    assert place.run("forgets").ended == "failed"


@pytest.mark.slow
def test_a_cell_that_does_not_end_is_stopped_in_order(place: Place) -> None:
    """The limit is long enough for it to get ready; TERM comes in any case."""
    result = place.run("hangs", Workload(limit_s=2.0))
    assert result.ended == "failed"
    assert result.reason == "did not end within 2 s; its last line: stopped in order"


def test_a_cell_that_does_not_stop_is_killed(place: Place) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited: it ignores TERM from its first moment
    try:
        assert place.run("stubborn", Workload(limit_s=0.5), grace_s=0.2).ended == "failed"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_cell_leaves_running_is_ended(place: Place) -> None:
    assert place.run("litters").ended == "done"
    pid = int(place.log("litters")[-1])
    wait_for(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the end of it"
    )


def test_an_interrupt_ends_the_cell_in_order_and_leaves_no_result(place: Place) -> None:
    place.interrupts_to_come = 1
    assert place.run("hangs") is None
    assert place.log("hangs") == ["ready", "stopped in order"]
    assert place.folder.result(named("hangs")) is None


@pytest.mark.slow
def test_a_second_interrupt_kills(place: Place) -> None:
    place.interrupts_to_come = 2
    assert place.run("stubborn") is None


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert tail(file) == []
    file.write_bytes(b"\xff" * 200_000 + b"\n" + b"\n".join(b"%d" % number for number in range(100)) + b"\n\n")
    assert tail(file) == [str(number) for number in range(88, 100)]
