"""Companions record until the last worker of their machine has ended, and to the last line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.errors import PEER_GONE
from dynamix_ps.other_launchers import mirror, records
from dynamix_ps.other_launchers.receiving import Receiving
from dynamix_ps.run_record.model import WorkerState
from dynamix_ps.run_record.run_folder import RunFolder
from tests.launching import wait_for

NO_SERVERS: Any = SimpleNamespace(look=lambda: None, end=lambda: None)
CONFIG = Config(cluster=Cluster(workers=(WorkerSection(),) * 2), comm="gloo")


class Workers:
    """The worker that has started the companion is done; another one works until the third look."""

    starter_is_done, starter_is_gone = True, False

    def __init__(self, works: Callable[[int], object]) -> None:
        self._works, self.looks, self.others = works, 0, {1}

    def look(self) -> None:
        self.looks += 1
        self._works(self.looks)
        if self.looks == 3:
            self.others = set()


def folder_in(place: Path) -> RunFolder:
    folder = RunFolder(place)
    folder.make()
    return folder


@pytest.mark.timeout(30)
def test_all_records_of_a_machine_are_sent(tmp_path: Path) -> None:
    here, away = folder_in(tmp_path / "here"), folder_in(tmp_path / "away")
    line = '{"kind": "window"}\n' * 100_000  # more than a socket takes at once

    def works(looks: int) -> None:
        with away.worker_file(1).open("a") as file:
            file.write(line)

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    receiving = Receiving(listener.detach(), 1, here.path, "secret")
    workers: Any = Workers(works)

    def send() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            mirror.prove(connection, "secret", mirror.CALLER)
            mirror._send(connection, away, workers, NO_SERVERS, 20.0)

    sending = threading.Thread(target=send)
    sending.start()
    wait_for(lambda: receiving.look() or receiving.is_over, "the end of the records", 20.0)
    sending.join()
    receiving.close()
    assert here.worker_file(1).stat().st_size == 3 * len(line)


def test_records_are_kept_until_all_have_finished(tmp_path: Path) -> None:
    state = WorkerState(1)
    workers: Any = Workers(lambda looks: None)
    recorder: Any = SimpleNamespace(
        folder=folder_in(tmp_path / "run"), poll=lambda: None, state=SimpleNamespace(workers={1: state})
    )
    assert records._record(recorder, workers, NO_SERVERS, None, CONFIG) is None
    assert workers.looks == 3


def test_a_server_that_is_lost_is_the_cause_and_a_worker_before_those_that_miss_it() -> None:
    told = f"worker 0 lost server 0: {PEER_GONE}"
    failed = {0: WorkerState(0, error=told), 1: WorkerState(1)}
    assert records._ending(failed, "server-0 was killed")[1] == "server-0 was killed"
    assert records._ending(failed, "")[1].startswith("worker-1 ended before the training was over")
    finished = {0: WorkerState(0, train_s=1.0)}
    assert records._ending(finished, "server-0 ended with exit code 1")[0] == 0
