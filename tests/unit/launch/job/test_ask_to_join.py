"""`dynamix join`: a line in the run folder, and what the workers write about it."""

from __future__ import annotations

import threading
import time

import pytest

from dynamix_ps.config.schema import Host
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, TimedOut, UsageError
from dynamix_ps.launch.job.ask_to_join import ask_to_join
from dynamix_ps.launch.job.ask_to_leave import ask_to_leave
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.requests import JOIN, MembershipRequest, Requests
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.launch.job.test_ask_to_leave import ELASTIC, folder  # noqa: F401  # the fixture
from tests.unit.synthetic_run import START_S, append

pytestmark = pytest.mark.timeout(60)
LEFT = {"kind": "worker_left", "rank": 2, "time_s": START_S + 1.0, "iteration": 30, "workers": 2}


def answered(folder: RunFolder, *lines: dict[str, object]) -> threading.Thread:  # noqa: F811
    """Once the launcher has read the request, worker 0 writes these lines."""
    requests = Requests(folder)

    def answer() -> None:
        asked: list[MembershipRequest] = []
        while not asked:
            time.sleep(0.01)
            asked = requests.read()
        assert asked == [MembershipRequest(JOIN, 2)]
        append(folder.worker_file(0), *lines)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_it_waits_until_the_worker_takes_part(folder: RunFolder) -> None:  # noqa: F811
    append(folder.worker_file(2), LEFT)
    entered = {
        "kind": "workers_entered",
        "rank": 0,
        "time_s": START_S + 9.0,
        "iteration": 1912,
        "entered": [2],
        "workers": 3,
    }
    thread = answered(folder, {**entered, "entered": [1]}, entered)
    assert ask_to_join(folder, 2) == "worker 2 has entered; 3 workers go on from iteration 1,912"
    thread.join()


def test_it_asks_again_until_the_worker_takes_part(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The process of the worker may still run when it is asked first."""
    monkeypatch.setattr("dynamix_ps.launch.job.ask_to_join.REPEAT_S", 0.0)
    append(folder.worker_file(2), LEFT)
    requests = Requests(folder)
    with pytest.raises(TimedOut):
        ask_to_join(folder, 2, patience_s=0.5)
    assert len(asked := requests.read()) > 1 and set(asked) == {MembershipRequest(JOIN, 2)}


def test_a_server_sums_again(folder: RunFolder) -> None:  # noqa: F811
    with pytest.raises(UsageError, match=r"server 0: it is there \(running\)"):
        ask_to_join(folder, 0, "server")
    with pytest.raises(UsageError, match="server 1: the run has servers 0 to 0"):
        ask_to_join(folder, 1, "server")
    append(
        folder.journal_file,
        {"kind": "lost", "role": "server", "slot": 0, "reason": "it has exited", "time_s": START_S + 2.0},
    )
    requests = Requests(folder)

    def answer() -> None:
        asked: list[MembershipRequest] = []
        while not asked:
            time.sleep(0.01)
            asked = requests.read()
        assert asked == [MembershipRequest(JOIN, 0, "server")]
        entered = {"kind": "servers_entered", "rank": 0, "time_s": START_S + 9.0, "iteration": 1912, "entered": [0]}
        append(folder.worker_file(0), entered)

    threading.Thread(target=answer, daemon=True).start()
    assert ask_to_join(folder, 0, "server") == "server 0 has entered; it sums from iteration 1,912 on"


def test_a_ring_has_no_servers(folder: RunFolder) -> None:  # noqa: F811
    folder.write_config(ELASTIC.model_copy(update={"comm": "gloo"}))
    with pytest.raises(UsageError, match="comm: gloo has no servers"):
        ask_to_join(folder, 0, "server")


def test_who_is_there_need_not_come(folder: RunFolder) -> None:  # noqa: F811
    with pytest.raises(UsageError, match="worker 2: it is there"):
        ask_to_join(folder, 2)
    assert not folder.requests_file.exists()


def test_the_run_may_end_before(folder: RunFolder) -> None:  # noqa: F811
    append(folder.worker_file(2), LEFT)
    requests = Requests(folder)

    def end() -> None:
        while not requests.read():
            time.sleep(0.01)
        append(folder.events_file, {"kind": "end", "time_s": START_S + 9.0, "source": "launcher"})

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(DynamixError, match="the run ended before worker 2 took part"):
        ask_to_join(folder, 2)


def test_its_host_may_not_be_back(folder: RunFolder) -> None:  # noqa: F811
    append(folder.worker_file(2), LEFT)
    requests = Requests(folder)
    away = {"kind": "host_not_back", "time_s": START_S + 9.0, "source": "launcher", "host": "c", "reason": "timed out"}

    def tell() -> None:
        while not requests.read():
            time.sleep(0.01)
        append(folder.events_file, {**away, "roles": ["worker-12"]}, {**away, "roles": ["worker-1", "worker-2"]})

    threading.Thread(target=tell, daemon=True).start()
    with pytest.raises(EnvironmentNotReady, match="worker 2: its host c is not back: timed out"):
        ask_to_join(folder, 2)


def test_its_host_may_not_fit(folder: RunFolder) -> None:  # noqa: F811
    append(folder.worker_file(2), LEFT)
    requests = Requests(folder)
    refused = {"kind": "host_refused", "time_s": START_S + 9.0, "source": "launcher", "host": "c", "reason": "no torch"}

    def tell() -> None:
        asked: list[MembershipRequest] = []
        while not asked:
            time.sleep(0.01)
            asked = requests.read()
        assert asked == [MembershipRequest(JOIN, 2, host="c")]
        append(folder.events_file, {**refused, "roles": ["worker-2"]})

    threading.Thread(target=tell, daemon=True).start()
    with pytest.raises(EnvironmentNotReady, match="worker 2: host c cannot join: no torch"):
        ask_to_join(folder, 2, host="c")


def test_a_worker_without_a_host_needs_one(folder: RunFolder) -> None:  # noqa: F811
    hosts = {"a": Host(address="10.0.0.1", slots=2)}
    later = ELASTIC.cluster.workers[2].model_copy(update={"later": True})
    changes = {"host": "a", "hosts": hosts, "workers": (*ELASTIC.cluster.workers[:2], later)}
    cluster = ELASTIC.cluster.model_copy(update=changes)
    folder.worker_file(2).unlink()
    folder.write_config(ELASTIC.model_copy(update={"cluster": cluster}))
    with pytest.raises(UsageError, match="worker 2: no host has a free slot for it; name one: dynamix join 2 --host"):
        ask_to_join(folder, 2)
    joined = {"kind": "host_joined", "time_s": START_S, "source": "launcher", "host": "b", "address": "::1"}
    append(folder.events_file, {**joined, "workers": [2]})
    with pytest.raises(TimedOut):
        ask_to_join(folder, 2, patience_s=0.0)


def test_it_does_not_wait_for_ever(folder: RunFolder) -> None:  # noqa: F811
    append(folder.worker_file(2), LEFT)
    with pytest.raises(TimedOut, match="worker-2"):
        ask_to_join(folder, 2, patience_s=0.0)


def test_a_worker_that_was_not_there_yet_may_come(folder: RunFolder) -> None:  # noqa: F811
    cluster = ELASTIC.cluster
    places = (*cluster.workers[:2], cluster.workers[2].model_copy(update={"later": True}))
    config = ELASTIC.model_copy(update={"cluster": cluster.model_copy(update={"workers": places})})
    folder.worker_file(2).unlink()
    folder.write_config(config)
    with pytest.raises(UsageError, match=r"worker 2: it is not there \(not there yet\)"):
        ask_to_leave(folder, 2)
    entered = {"kind": "workers_entered", "rank": 0, "time_s": START_S + 9.0, "iteration": 12, "entered": [2]}
    thread = answered(folder, {**entered, "workers": 3})
    assert ask_to_join(folder, 2) == "worker 2 has entered; 3 workers go on from iteration 12"
    thread.join()
    state = state_of(read_told(folder), 3, config.later)
    assert [worker.rank for worker in state.workers.there] == [0, 1, 2]
