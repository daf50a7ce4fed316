"""A long wait reports the workers whose gradients are missing, at intervals, and ends with an error."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import StallError
from dynamix_ps.messages import PeerStatus, Plan, Registration
from dynamix_ps.run_record.json_lines import JsonLines
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.observe.reporter import Reporter
from worker_hooks.observe.stall import StallWatch


class Heard:
    """An arbitrator's client that has heard of three workers: 0 and 1 have sent iteration 7, worker 2 has not."""

    def peers(self) -> tuple[PeerStatus, ...]:
        return (PeerStatus(0, 8, 0.1, True), PeerStatus(1, 8, 0.2, True), PeerStatus(2, 7, 31.0, False))

    def start(self) -> None: ...

    def close(self, timeout_s: float) -> None: ...


@pytest.fixture
def reporter(monkeypatch):
    reporter = Reporter(0, None)
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(reporter, "event", lambda kind, **fields: events.append({"kind": kind, **fields}))
    monkeypatch.setattr(reporter, "_client", Heard())
    yield reporter, events
    reporter.close()


def watch(reporter: Reporter) -> StallWatch:
    return StallWatch(0, reporter, Timeouts(stall_warn_s=10.0, stall_fail_s=100.0))


def test_only_who_has_not_sent_is_missing(reporter):
    missing = reporter[0].missing(7)
    assert (missing.ranks, missing.servers) == ((2,), ())
    assert missing.sentence == "missing: worker 2 (at iteration 7, silent for 31 s)"
    watch(reporter[0]).waiting(iteration=7, waited_s=11.0)
    assert reporter[1] == [{"kind": "stall", "iteration": 7, "waited_s": 11.0, "missing": [2], "missing_servers": []}]


def test_without_an_arbitrator_nobody_is_accused(monkeypatch):
    alone = Reporter(0, None)
    assert alone.missing(7) == (
        (),
        (),
        "the missing workers are not known: the arbitrator does not answer or is off",
    )
    alone.close()


def test_a_worker_that_has_not_reported_yet_is_not_said_to_have_sent(reporter, monkeypatch):
    monkeypatch.setattr(Heard, "peers", lambda self: (PeerStatus(0, 8, 0.1, True),))
    monkeypatch.setattr("dynamix_ps.rpc.client.ArbitratorClient", lambda *_, **__: Heard())
    reporter[0].connect(None, Registration(0, "i", "here", 1, Plan(0, (8, 8, 4, 0))), None)
    told = "the missing workers are not known: the arbitrator has not heard of worker 1, worker 2"
    assert reporter[0].missing(7) == ((), (), told)


def test_where_all_workers_have_sent_the_silent_server_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Heard, "peers", lambda self: (PeerStatus(0, 8, 0.1, True), PeerStatus(1, 8, 0.2, True)))
    reporter = Reporter(0, RunFolder(tmp_path))
    monkeypatch.setattr(reporter, "_client", Heard())
    assert reporter.missing(7).sentence.startswith("no worker is missing: all have sent their gradients")
    now_s = time.time()
    for name, ago_s in (("server-0", 100.0), ("server-1", 0.0)):
        lines = JsonLines(RunFolder(tmp_path).role_file(name))
        for second in range(10):
            lines.write({"kind": "role", "time_s": now_s - ago_s - 10 + second})
    missing = reporter.missing(7)
    assert (missing.ranks, missing.servers) == ((), ("server-0",))
    assert missing.sentence == "missing: server-0 (does not answer, silent for 101 s)"
    reporter.close()


def test_warnings_come_at_twice_the_time_and_start_anew_with_the_next_wait(reporter):
    stall = watch(reporter[0])
    for waited_s in range(1, 60):
        stall.waiting(7, float(waited_s))
    assert [event["waited_s"] for event in reporter[1]] == [10.0, 20.0, 40.0]
    stall.waiting(8, 1.0)
    stall.waiting(8, 10.0)
    assert len(reporter[1]) == 4


def test_patience_ends_with_an_error_that_names_the_missing(reporter):
    stall = watch(reporter[0])
    with pytest.raises(StallError, match=r"waited 100 s for the sum of iteration 7; missing: worker 2 .*stall_fail_s"):
        stall.waiting(7, 100.0)
