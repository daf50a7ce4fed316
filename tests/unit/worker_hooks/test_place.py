"""One process is a worker: the first that attaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamix_ps.errors import UsageError
from worker_hooks.process import failure, place

WORKER = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "3"}


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_holder", 0)


def another(body: Callable[[], object]) -> bool:
    """Whether a process that is forked here can do it."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    try:
        body()
    except UsageError:
        os._exit(1)
    finally:
        os._exit(0)


@pytest.fixture(params=["folder", "no folder", "a folder that is not here"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    folders = {"folder": tmp_path, "a folder that is not here": tmp_path / "absent"}
    folder = folders.get(request.param)
    return {**WORKER, **({} if folder is None else {"DYNAMIX_PLACE": str(folder)})}


def test_the_process_that_has_taken_it_attaches_again_and_a_forked_one_does_not(environ: dict[str, str]) -> None:
    assert another(lambda: place.check_place(environ))
    place.take_place(environ)
    place.take_place(environ)
    assert not another(lambda: place.check_place(environ))
    assert not another(lambda: place.take_place(environ))


def test_what_it_starts_is_refused_by_its_variables(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    place.take_place(environ)
    monkeypatch.setattr(place, "_holder", 0)  # as in a new Python
    with pytest.raises(UsageError, match=f"process {os.getpid()} is worker 3 already, and a worker is one process"):
        place.take_place(environ)


def test_without_the_variables_it_is_no_worker() -> None:
    place.take_place(alone := {"HOME": "/root"})
    assert alone == {"HOME": "/root"}


def test_processes_that_were_there_before_find_it_taken(tmp_path: Path) -> None:
    environ = {**WORKER, "DYNAMIX_PLACE": str(tmp_path)}
    assert another(lambda: place.take_place(dict(environ)))
    with pytest.raises(UsageError):
        place.take_place(dict(environ))


@pytest.mark.parametrize("other", [{"DYNAMIX_STARTS": "1"}, {"BYTEPS_LOCAL_RANK": "1"}])
def test_a_worker_that_is_started_again_or_has_several_processes_has_a_place_of_its_own(
    tmp_path: Path, other: dict[str, str]
) -> None:
    environ = {**WORKER, "DYNAMIX_PLACE": str(tmp_path), "DYNAMIX_STARTS": "0"}
    assert another(lambda: place.take_place(dict(environ)))
    place.take_place({**environ, **other})


def test_of_many_at_once_one_succeeds(tmp_path: Path) -> None:
    environ = {**WORKER, "DYNAMIX_PLACE": str(tmp_path)}
    children = []
    begin, go = os.pipe()
    for _ in range(8):
        if child := os.fork():
            children.append(child)
            continue
        os.close(go)
        os.read(begin, 1)  # until the parent closes its end
        try:
            place.take_place(environ)
        except UsageError:
            os._exit(1)
        finally:
            os._exit(0)
    os.close(go)
    os.close(begin)
    assert sorted(os.waitpid(child, 0)[1] >> 8 for child in children) == [0] + [1] * 7


class Run:
    def __init__(self) -> None:
        self.told: list[str] = []

    def abandon(self, error: BaseException) -> None:
        self.told.append(str(error))

    def explained(self, error: BaseException) -> BaseException:
        return error

    def close(self) -> None:
        self.told.append("closed")


def test_errors_of_a_forked_process_are_not_those_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_trained", set())
    monkeypatch.setattr(failure, "_runs", [])  # tests before may have left some
    failure.exit_on_failure(run := Run())
    try:
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            assert failure._runs == [run]
            return
        os._exit(len(failure._runs) + len(failure._trained))
    finally:
        failure.forget(run)
