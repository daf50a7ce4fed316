"""torchft beside the study of membership: what counts as a wait, as lost and as repeated, and what the page says."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.report.page import write_csv
from benchmarks.studies import membership, membership_torchft
from benchmarks.studies.membership import CASES
from benchmarks.studies.membership_job import SETTLED, STRUCK_AT, WARM_UP, WORKERS
from benchmarks.studies.membership_job import Outcome as OurOutcome
from benchmarks.studies.membership_torchft import SETTINGS, compare, main, row_of
from benchmarks.studies.membership_torchft_job import Attempt, Limits, Outcome, outcome_of, read, run_job
from benchmarks.studies.membership_torchft_replica import main as replica

EXAMPLE, SHORT = SETTINGS
OUTCOME = Outcome(0.25, 5.25, 0.75, 7.5, lost=0, repeated=3)
ENTERED = STRUCK_AT + 10
STRUCK_S = 0.2 * STRUCK_AT - 0.1  # in the middle of its step


@pytest.fixture(autouse=True)
def machine_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is measured, so no test waits for a grid that runs on this machine."""
    monkeypatch.setattr(membership_torchft, "exclusive_machine", lambda on_wait: nullcontext())


def attempts(late_s: float = 0.0, entry_s: float = 0.0) -> list[Attempt]:
    """Steps of 0.2 s; those from STRUCK_AT and from ENTERED on end later than they would."""
    return [
        Attempt(step, True, True, 0.2 * step + late_s * (step >= STRUCK_AT) + entry_s * (step >= ENTERED))
        for step in range(ENTERED + SETTLED + 1)
    ]


def again(first_s: float = 20.0) -> list[Attempt]:
    """The newcomer takes the state of the others in its first step, and part from the second on."""
    return [Attempt(ENTERED + number, True, number > 0, first_s + 0.2 * number) for number in range(SETTLED + 1)]


def test_the_wait_ends_when_the_last_of_the_others_has_committed_the_step_of_the_loss() -> None:
    found = outcome_of({0: attempts(0.3), 1: attempts(0.7), 2: attempts(0.3)}, again(), STRUCK_S, begun_s=12.0)
    assert (found.iteration_s, found.wait_s) == (pytest.approx(0.2), pytest.approx(0.8))
    assert (found.lost, found.repeated) == (0, 0)
    assert outcome_of({0: attempts()[:STRUCK_AT], 1: attempts()}, again(), STRUCK_S, 12.0).wait_s == math.inf


def test_a_step_of_before_does_not_end_the_wait() -> None:
    behind = [
        Attempt(one.step, True, True, STRUCK_S + 0.01) if one.step == STRUCK_AT - 1 else one for one in attempts()
    ]
    assert outcome_of({0: behind}, again(), STRUCK_S, 12.0).wait_s == pytest.approx(0.1)


def test_gradients_that_were_thrown_away_and_steps_of_others_alone_are_counted() -> None:
    early, in_vain = Attempt(WARM_UP - 1, False, True, 0.5), Attempt(STRUCK_AT, False, True, 4.5)
    mine = sorted([*attempts(1.0), early, in_vain], key=lambda one: one.at_s)
    without = [one for one in attempts(1.0) if one.step not in (WARM_UP - 1, STRUCK_AT + 1)]
    found = outcome_of({0: mine, 1: without}, again(), STRUCK_S, 12.0)
    assert (found.lost, found.repeated) == (1, 1), "from the end of the warm-up on"
    assert outcome_of({0: mine}, again(), STRUCK_S, 12.0).wait_s == pytest.approx(1.1), "not the one in vain"


def test_the_entry_is_the_longest_gap_then_and_the_first_sample_is_in_the_first_step_with_its_gradients() -> None:
    found = outcome_of({0: attempts(9.0, entry_s=0.4), 1: attempts(9.0, entry_s=0.6)}, again(20.0), STRUCK_S, 12.0)
    assert (found.entry_wait_s, found.first_sample_s) == (pytest.approx(0.8), pytest.approx(8.2))


def test_every_replica_is_struck_by_turns_and_what_has_ended_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[tuple[Limits, int]] = []

    def fake(venv: Path, limits: Limits, struck: int) -> Outcome:
        jobs.append((limits, struck))
        if len(jobs) == 4:
            raise SystemExit("it failed")
        return OUTCOME

    monkeypatch.setattr(membership_torchft, "run_job", fake)
    venv = venv_with(tmp_path, lighthouse="exit 0")
    words = ["--venv", str(venv), "--out", str(tmp_path), "--runs", "5", "--json", str(tmp_path / "figures.json")]
    with pytest.raises(SystemExit):
        main(words)
    assert main([*words, "--limit-s", "-1"]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["left"] == 7
    assert main(words) == 0
    whole = [(limits, run % WORKERS) for run in range(5) for limits in SETTINGS.values()]
    assert jobs == [*whole[:4], *whole[3:]]
    assert json.loads((tmp_path / "figures.json").read_text())["left"] == 0


def test_the_page_has_ours_beside_torchft_and_keeps_the_table_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, join = (next(case for case in CASES if case.key == key) for key in ("kill", "join"))
    ours = [
        membership.row_of(kill, 0, OurOutcome(0.2, 0.5, 0, 0, True)),
        membership.row_of(join, 0, OurOutcome(0.2, 0.5, 0, 0, True, copy_s=0.25, first_sample_s=6.0)),
    ]
    write_csv(tmp_path / "membership.csv", ours)
    page = tmp_path / "membership.md"
    page.write_text(
        "# Ours\n\n<!-- figures -->\ntheirs\n<!-- end of figures -->\n\n<!-- figures -->\n<!-- end of figures -->\n"
    )
    monkeypatch.setattr(membership_torchft, "run_job", lambda *_, **__: OUTCOME)
    assert main(["--venv", str(venv_with(tmp_path, "exit 0")), "--out", str(tmp_path), "--runs", "2"]) == 0
    text = page.read_text()
    assert "# Ours\n\n<!-- figures -->\ntheirs\n<!-- end of figures -->\n\n<!-- figures -->\n`python -m" in text
    assert "| ours | 1 | 0.20 s | 0.30 s | 0.30 s | 0, 0 | 0.30 s | 0.30 s | 6.00 s |" in text
    assert f"| torchft, {SHORT} | 2 | 0.25 s | 5.00 s | 5.00 s | 0, 6 | 0.50 s | 0.50 s | 7.50 s |" in text


def test_without_runs_of_ours_or_of_a_setting_there_is_no_line_of_it() -> None:
    assert [line["who"] for line in compare([], [row_of(SHORT, 0, OUTCOME)])] == [f"torchft, {SHORT}"]


def test_an_environment_without_torchft_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--venv", str(tmp_path), "--out", str(tmp_path)]) != 0
    assert f"--venv {tmp_path}: has no torchft" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def venv_with(folder: Path, lighthouse: str) -> Path:
    """An environment whose lighthouse is this script, and whose replicas wait."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, script in (("torchft_lighthouse", lighthouse), ("python", "exec sleep 60")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return programs.parent


@pytest.mark.timeout(30)
def test_a_process_that_ends_ends_the_job_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)torchft: lighthouse ended; .*no such address"):
        run_job(venv_with(tmp_path, "echo no such address >&2; exit 3"), SETTINGS[SHORT], struck=0)


class FakeManager:
    """A manager that commits as told, and then ends the replica."""

    def __init__(self, commits: Sequence[bool]) -> None:
        self._commits, self._step = list(commits), 0

    def current_step(self) -> int:
        return self._step

    def is_participating(self) -> bool:
        return self._step > 1

    def start_quorum(self) -> None:
        if not self._commits:
            raise KeyboardInterrupt

    def should_commit(self) -> bool:
        committed = self._commits.pop(0)
        self._step += committed
        return committed


class FakeWrapper:
    """The wrapper for a model: it only calls it."""

    def __init__(self, _: FakeManager, net: torch.nn.Module) -> None:
        self._net = net

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._net(inputs)


@pytest.mark.timeout(60)
def test_a_replica_notes_every_attempt_and_steps_where_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def manager(**settings: Any) -> FakeManager:
        given.update(settings)
        return FakeManager([True, False, True])

    fake = SimpleNamespace(
        Manager=manager, ProcessGroupGloo=lambda timeout: timeout, DistributedDataParallel=FakeWrapper
    )
    monkeypatch.setitem(sys.modules, "torchft", fake)
    (tmp_path / "go").touch()
    options = {
        "replica": 2,
        "replicas-min": 3,
        "batch": 4,
        "sum-s": 1.5,
        "steps": tmp_path / "s",
        "go": tmp_path / "go",
    }
    words = ["replica", *(str(word) for name, value in options.items() for word in (f"--{name}", value))]
    monkeypatch.setattr(sys, "argv", words)
    steps_made = []
    monkeypatch.setattr(torch.optim.SGD, "step", steps_made.append)
    with pytest.raises(KeyboardInterrupt):
        replica()
    found = read(tmp_path / "s")
    assert [(one.step, one.committed, one.takes_part) for one in found] == [
        (0, True, False),
        (1, False, False),
        (1, True, True),
    ]
    assert len(steps_made) == 2
    assert (given["replica_id"], given["min_replica_size"], given["pg"].total_seconds()) == ("replica_2", 3, 1.5)
