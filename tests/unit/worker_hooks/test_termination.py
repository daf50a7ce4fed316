"""SIGTERM and other notices in a training process and its forks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.unit.worker_hooks.test_passes import attached
from worker_hooks.process.termination import TERMINATION, Termination


class Run:
    goes_on_at_term = True
    may_leave = False
    job_ends = False

    def terminated(self) -> None:
        pass


@pytest.fixture
def termination() -> Iterator[Termination]:
    """Of a process that watches one run, in an elastic job."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGUSR1)}
    found = Termination()
    found._end_late = lambda: None  # type: ignore[method-assign]  # it would end this process
    run = Run()
    run.may_leave = True
    found.watch(run)
    found.notice_usr1()
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_fork_has_the_default_action_and_the_training_process_its_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    termination = Termination()
    try:
        termination.watch(Run())
        if not (pid := os.fork()):
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL or signal.SIGTERM in blocked)
        assert os.waitpid(pid, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) == termination._on_signal
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_first_sigterm_asks_to_leave_and_the_second_ends_the_worker(termination: Termination) -> None:
    signal.raise_signal(signal.SIGTERM)
    assert (termination.leaving, termination.requested) == (True, False)
    signal.raise_signal(signal.SIGTERM)
    assert termination.requested


def test_a_worker_that_records_why_it_fails_is_not_cut_short(termination: Termination) -> None:
    run = Run()
    run.goes_on_at_term = False
    termination._runs = [run]
    termination.failing()
    signal.raise_signal(signal.SIGTERM)  # would end this process
    assert not termination.requested


def test_a_training_that_fails_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TERMINATION, "_fails", False)
    attached().training.abandon(RuntimeError("broken"))
    assert TERMINATION._fails


def test_a_sigterm_by_which_the_launcher_ends_the_job_is_no_notice(termination: Termination) -> None:
    run = Run()
    run.may_leave = run.job_ends = True
    termination._runs = [run]
    signal.raise_signal(signal.SIGTERM)
    assert (termination.leaving, termination.requested) == (False, True)


def test_sigusr1_asks_to_leave_unless_the_script_has_a_handler_of_its_own(termination: Termination) -> None:
    signal.raise_signal(signal.SIGUSR1)
    assert (termination.leaving, termination.requested) == (True, False)
    signal.raise_signal(signal.SIGTERM)
    assert not termination.requested, "the first SIGTERM is a notice all the same"

    own: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: own.append(number))
    other = Termination()
    other.notice_usr1()
    signal.raise_signal(signal.SIGUSR1)
    assert own == [signal.SIGUSR1] and not other.leaving


def test_a_refused_sigterm_ends_the_worker_and_other_notices_do_not(
    termination: Termination, capsys: pytest.CaptureFixture[str]
) -> None:
    termination.leave()
    termination.refuse("worker 2 cannot leave")
    assert (termination.leaving, termination.requested) == (False, False)
    assert capsys.readouterr().err == "warning: worker 2 cannot leave\n"
    signal.raise_signal(signal.SIGTERM)
    termination.refuse("worker 2 cannot leave")
    assert (termination.leaving, termination.requested) == (False, True)


def test_too_few_workers_end_the_training_in_order_however_long_an_iteration_takes(termination: Termination) -> None:
    termination.finish("1 worker is left, elastic.min_workers is 2")
    assert termination.requested and termination.cause.startswith("1 worker is left")
    assert not termination._told.is_set(), "nobody kills it after some seconds"
