"""`dynamix leave`: what the launcher reads, and what becomes of the request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.config.schema import Elastic
from dynamix_ps.errors import DynamixError, TimedOut, UsageError
from dynamix_ps.launch.job.ask_to_leave import ask_to_leave
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.requests import LEAVE, MembershipRequest, Requests, request
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import START_S, append, config, new_folder, started

pytestmark = pytest.mark.timeout(60)
ELASTIC = config(3, elastic=Elastic(min_workers=2))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run of three workers that train."""
    found = new_folder(tmp_path)
    found.write_config(ELASTIC)
    for rank in range(3):
        append(found.worker_file(rank), started(rank))
    return found


def line(kind: str, rank: int, **fields: object) -> Line:
    return {"kind": kind, "rank": rank, "time_s": START_S + 9.0, **fields}


def answered(folder: RunFolder, answer: Callable[[int], None]) -> threading.Thread:
    """A launcher and workers that answer the first request."""
    requests = Requests(folder)

    def wait() -> None:
        while not (ranks := requests.read()):
            time.sleep(0.01)
        answer(ranks[0][1])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_the_launcher_reads_each_request_once(folder: RunFolder) -> None:
    requests = Requests(folder)
    assert requests.read() == []
    request(folder, LEAVE, 2)
    request(folder, LEAVE, 0)
    append(folder.requests_file, {"kind": "leave", "number": "1", "role": "worker"})
    append(folder.requests_file, {"kind": "other", "number": 1, "role": "worker"}, {"kind": "leave", "number": 1})
    assert requests.read() == [MembershipRequest(LEAVE, 2), MembershipRequest(LEAVE, 0)]
    assert requests.read() == []


def test_the_command_tells_that_the_worker_has_left(folder: RunFolder) -> None:
    append(folder.worker_file(1), line("leave_refused", 1, iteration=3, why="of an earlier request"))
    left = answered(
        folder, lambda rank: append(folder.worker_file(rank), line("worker_left", rank, iteration=1812, workers=2))
    )
    result = CliRunner().invoke(cli, ["leave", "1", str(folder.path)], standalone_mode=False)
    left.join()
    assert result.exception is None
    assert result.output == "worker 1 has left; 2 workers go on from iteration 1,812\n"


def test_a_refusal_is_an_error_with_its_reason(folder: RunFolder) -> None:
    why = "worker 1 cannot leave: 1 of 2 workers would stay, and elastic.min_workers is 2"
    told = answered(folder, lambda rank: append(folder.worker_file(rank), line("leave_refused", rank, why=why)))
    with pytest.raises(DynamixError, match=why):
        ask_to_leave(folder, 1)
    told.join()


@pytest.mark.parametrize("ends", [True, False])
def test_the_run_may_end_before(folder: RunFolder, ends: bool) -> None:
    def answer(rank: int) -> None:
        if ends:
            append(folder.events_file, {"kind": "end", "time_s": START_S + 9.0, "source": "launcher"})
        else:
            append(folder.worker_file(rank), line("finished", rank, iterations=9, samples=9, train_s=1.0))

    told = answered(folder, answer)
    with pytest.raises(DynamixError, match="ended before worker 1 left" if ends else "has finished its training"):
        ask_to_leave(folder, 1)
    told.join()


def test_no_answer_is_an_error_after_a_while(folder: RunFolder) -> None:
    with pytest.raises(TimedOut, match=r"worker 1 has not answered within 0 s"):
        ask_to_leave(folder, 1, patience_s=0.0)


def test_what_cannot_be_is_not_asked(folder: RunFolder) -> None:
    append(folder.worker_file(1), line("worker_left", 1, iteration=3, workers=2))
    with pytest.raises(UsageError, match=r"worker 1: it is not there any more \(left\)"):
        ask_to_leave(folder, 1)
    with pytest.raises(UsageError, match="worker 3: the run has workers 0 to 2"):
        ask_to_leave(folder, 3)
    append(folder.events_file, {"kind": "end", "time_s": START_S + 9.0, "source": "launcher"})
    with pytest.raises(UsageError, match="the run is over"):
        ask_to_leave(folder, 2)
    folder.config_file.unlink()
    folder.write_config(config(3))
    with pytest.raises(UsageError, match="the others do not go on without a worker in this run"):
        ask_to_leave(folder, 0)
    assert not folder.requests_file.exists()
