"""The order and the verdicts of the GPU checks. What they run on a GPU is not tested here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.parts import gpu_check
from benchmarks.parts.gpu import checks as gpu_checks
from benchmarks.parts.gpu.run import Check, CheckFailed, Figures, Machine, Outcome, command, run_checks

ONE_GPU = Machine(1, "a card", Path("nowhere"))


def passes(machine: Machine) -> Figures:
    return {"gpus": machine.gpus}


def fails(machine: Machine) -> Figures:
    raise CheckFailed("one sum is wrong", {"wrong": 1})


def breaks(machine: Machine) -> Figures:
    raise OSError("no space left")


def outcomes_of(*checks: Check, limit_s: float = 100.0, machine: Machine = ONE_GPU) -> list[Outcome]:
    ticks = itertools.count()
    return run_checks(checks, machine, limit_s, lambda outcomes: None, lambda: float(next(ticks)))


def test_a_failing_check_does_not_stop_the_others() -> None:
    found = outcomes_of(Check("a", "", fails), Check("b", "", breaks), Check("c", "", passes))
    assert [(one.state, one.detail, one.figures) for one in found] == [
        ("failed", "one sum is wrong", {"wrong": 1}),
        ("failed", "OSError: no space left", {}),
        ("ok", "", {"gpus": 1}),
    ]
    assert [one.took_s for one in found] == [1.0, 1.0, 1.0]


def test_what_cannot_be_tried_says_why() -> None:
    found = outcomes_of(
        Check("a", "", fails), Check("b", "", passes, needs=("a",)), Check("c", "", passes, least_gpus=2)
    )
    assert [(one.state, one.detail) for one in found[1:]] == [
        ("untried", "needs a"),
        ("untried", "needs 2 GPUs, there are 1"),
    ]
    assert outcomes_of(Check("a", "", passes), limit_s=0.0)[0].detail == "no time left: the limit is 0 s"


def test_outcomes_are_told_after_every_check() -> None:
    told: list[list[str]] = []

    def tell(outcomes: Sequence[Outcome]) -> None:
        told.append([one.name for one in outcomes])

    run_checks([Check("a", "", fails), Check("b", "", passes)], ONE_GPU, 100.0, tell)
    assert told == [["a"], ["a", "b"]]


def test_the_list_of_checks() -> None:
    names = [check.name for check in gpu_checks.CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(gpu_checks.CHECKS):
        assert check.about.endswith(".")
        assert set(check.needs) <= set(names[:number])


def test_without_a_gpu_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "found_gpus", lambda: (0, ""))
    file = tmp_path / "gpu.json"
    assert gpu_check.main(["--json", str(file)]) == 0
    assert gpu_check.NO_GPU in capsys.readouterr().out
    said = json.loads(file.read_text())
    assert said["note"] == gpu_check.NO_GPU
    assert {one["state"] for one in said["checks"]} == {"untried"}
    assert len(said["checks"]) == len(gpu_checks.CHECKS)


def test_the_json_file_grows_and_a_failure_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpu.json"
    seen: list[int] = []

    def looks(machine: Machine) -> Figures:
        seen.append(len(json.loads(file.read_text())["checks"]))
        return {"ms": 1.5}

    monkeypatch.setattr(gpu_check, "found_gpus", lambda: (2, "a card"))
    monkeypatch.setattr(gpu_check, "CHECKS", (Check("a", "A.", fails), Check("b", "B.", looks)))
    assert gpu_check.main(["--json", str(file)]) == 1
    assert seen == [1]
    said = json.loads(file.read_text())
    assert (said["gpus"], said["device"]) == (2, "a card")
    assert [one["state"] for one in said["checks"]] == ["failed", "ok"]


def test_the_table_shows_figures_and_reasons() -> None:
    console = Console(record=True, width=120)
    console.print(gpu_check.table([Outcome("sums", "", "failed", "two are wrong", {"wrong": 2}, 3.0)]))
    text = console.export_text()
    assert "two are wrong; wrong 2" in text and "failed" in text


# -- verdicts ----------------------------------------------------------------------------------------------------------


Workers = list[dict[str, Any]]


def with_workers(monkeypatch: pytest.MonkeyPatch, workers: Workers, code: int = 0, output: str = "") -> None:
    """Workers that end like this, in place of real ones."""
    monkeypatch.setattr(gpu_checks, "launch", lambda *_: (code, output, workers))
    monkeypatch.setattr(gpu_checks, "trained", lambda *_, settings="": workers)


def refused(check: Callable[[Machine], Figures]) -> str:
    with pytest.raises(CheckFailed) as caught:
        check(ONE_GPU)
    return str(caught.value)


def test_wrong_sums_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with_workers(monkeypatch, [{"sums": 5, "wrong": 0}] * 2)
    assert gpu_checks.sums("byteps")(ONE_GPU) == {"sums": 5, "wrong": 0}
    with_workers(monkeypatch, [{"sums": 5, "wrong": 0}, {"sums": 5, "wrong": 1}])
    assert refused(gpu_checks.sums("byteps")) == "1 wrong sums"
    with_workers(monkeypatch, [{"sums": 5, "wrong": 0}], code=4, output="worker-1 died")
    assert refused(gpu_checks.sums("byteps")) == "exit code 4: worker-1 died"


@pytest.mark.parametrize("waits_s, waited_s", [([], 3.0), ([3.0], 3.0), ([1.0], 1.0)])
def test_waits_that_hide_a_stall_fail(monkeypatch: pytest.MonkeyPatch, waits_s: list[float], waited_s: float) -> None:
    late = {"wrong": False, "waits_s": [], "waited_s": 0.0}
    with_workers(monkeypatch, [{"wrong": False, "waits_s": [1.0, 1.0], "waited_s": 2.9}, late])
    assert gpu_checks.late_worker("gloo")(ONE_GPU) == {"waits_s": [1.0, 1.0], "waited_s": 2.9}
    with_workers(monkeypatch, [{"wrong": False, "waits_s": waits_s, "waited_s": waited_s}, late])
    assert "waits of 1 s" in refused(gpu_checks.late_worker("gloo"))


def test_a_stopped_worker_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_workers(monkeypatch, [], code=5, output="error: worker-1 does not answer: stopped")
    assert gpu_checks.stopped_worker("gloo")(ONE_GPU)["exit_code"] == 5
    with_workers(monkeypatch, [], code=0)
    assert "names worker-1" in refused(gpu_checks.stopped_worker("gloo"))


@pytest.mark.parametrize(
    "change",
    [{"difference": 2e-9}, {"difference": float("nan")}, {"digest": "another"}, {"skipped_alone": 1}],
    ids=lambda change: next(iter(change)),
)
def test_other_weights_than_those_of_one_process_fail(monkeypatch: pytest.MonkeyPatch, change: Figures) -> None:
    same = {"difference": 1e-12, "skipped_steps": 0, "skipped_alone": 0, "digest": "one"}
    check = gpu_checks.equal_to_one_process("byteps", "train", 1e-9)
    with_workers(monkeypatch, [same, same])
    assert check(ONE_GPU) == {"difference": 1e-12, "skipped_steps": 0}
    with_workers(monkeypatch, [same | change, same])
    refused(check)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_program_tells_its_errors() -> None:
    code, output = command("-c", "print('error: a\\nmore\\nValueError: b'); raise SystemExit(3)")
    assert (code, output) == (3, "error: a\nValueError: b")
    assert command("-c", "print('all is well')") == (0, "all is well")


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(CheckFailed, match=r"did not end within 0 s: "):
        command("-c", "import time; time.sleep(600)", limit_s=0.01)
