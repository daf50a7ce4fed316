"""Measurements of kernel and machine go into the record of their window; an unknown value never becomes 0."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamix_ps.messages import Flow, SystemSample
from dynamix_ps.metrics.network.meter import Totals, Traffic
from dynamix_ps.run_record.run_folder import RunFolder
from tests.control_plane import record
from tests.launching import wait_for
from worker_hooks.observe.reporter import Reporter
from worker_hooks.observe.telemetry import Telemetry

NETWORK = ("push_bytes_per_s", "pull_bytes_per_s", "retransmits_per_s", "rtt_s", "push_busy")


def traffic(taken_s: float, total: float, source: str = "ebpf", restarts: int = 0, shared: bool = False) -> Traffic:
    flow = Flow("10.0.0.1:1", "10.0.0.2:2", total, 2 * total, total / 100, busy_s=taken_s / 4)
    return Traffic(
        flows=() if source == "none" else (flow,),
        total=Totals(total, 2 * total, total / 100, taken_s / 4),
        rtt_s=0.003,
        unsent_bytes=0.0,
        unread_bytes=0.0,
        source=source,  # type: ignore[arg-type]
        taken_s=taken_s,
        shared=shared,
        restarts=restarts,
    )


class Network:
    """Answers with what the test prepared, and tells when it does."""

    def __init__(self, *answers: Traffic) -> None:
        self._answers = list(answers)
        self.closed = False
        self.on_read: Callable[[], None] = lambda: None

    def read(self) -> Traffic:
        self.on_read()
        return self._answers.pop(0)

    def close(self) -> None:
        self.closed = True


def telemetry(*answers: Traffic) -> Telemetry:
    sample = SystemSample(cpu_ratio=0.1, cpu_cores=0.5, throttled=0.2, memory_bytes=3e8, memory_ratio=0.4)
    return Telemetry(2, Network(*answers), lambda: sample)


def test_rates_are_those_of_the_window_and_of_the_next_one_after_it() -> None:
    eyes = telemetry(traffic(100, 1000), traffic(102, 3000), traffic(106, 3400))
    eyes.begin_window()
    first, report = eyes.complete(record(2))
    assert (first.push_bytes_per_s, first.pull_bytes_per_s, first.retransmits_per_s) == (1000, 2000, 10)
    assert (first.rtt_s, first.push_busy, first.network_source) == (0.003, 0.25, "ebpf")
    assert (first.cpu_cores, first.throttled, first.memory_bytes, first.memory_ratio) == (0.5, 0.2, 3e8, 0.4)
    assert first.cpu_ratio == 0.9, "the stopwatch's, which leaves pauses out"
    assert (report.name, report.role, report.rank, report.time_s) == ("worker-2", "worker", 2, 102)
    assert report.flows[0].bytes_out == 3000
    second, _ = eyes.complete(record(2, window=1))
    assert second.push_bytes_per_s == 100


def test_what_happened_in_a_pause_belongs_to_no_window() -> None:
    eyes = telemetry(traffic(100, 0), traffic(150, 9_000_000), traffic(152, 9_002_000))
    eyes.begin_window()
    eyes.begin_window()
    assert eyes.complete(record())[0].push_bytes_per_s == 1000


@pytest.mark.parametrize(
    "after",
    [
        traffic(102, math.nan, source="none"),
        traffic(102, 10, restarts=1),
        traffic(102, 3000, source="procfs", shared=True),
    ],
    ids=["no source", "other counters", "counters of all roles"],
)
def test_what_is_not_known_of_this_worker_is_missing(after: Traffic) -> None:
    if not after.shared:  # there the round trip is known, but not whose
        after = dataclasses.replace(after, rtt_s=math.nan)
    eyes = telemetry(traffic(100, 1000), after)
    eyes.begin_window()
    got, report = eyes.complete(record())
    assert all(math.isnan(getattr(got, name)) for name in NETWORK)
    assert got.network_source == report.network_source == after.source


def test_a_record_without_a_beginning_has_no_rates() -> None:
    got, _ = telemetry(traffic(102, 3000)).complete(record())
    assert math.isnan(got.push_bytes_per_s)


def test_the_run_folder_gets_the_completed_record_and_the_roles_report(tmp_path: Path) -> None:
    folder, network = RunFolder(tmp_path), Network(traffic(100, 0), traffic(102, 2000))
    reporter = Reporter(2, folder)
    reporter.measure(Telemetry(2, network, SystemSample))
    reporter.window(record(2))
    reporter.close()
    (window,) = map(json.loads, folder.worker_file(2).read_text().splitlines())
    assert (window["kind"], window["push_bytes_per_s"], window["gpu_utilisation"]) == ("window", 1000, None)
    (role,) = map(json.loads, folder.role_file("worker-2").read_text().splitlines())
    assert (role["kind"], role["flows"][0]["bytes_out"]) == ("role", 2000)
    assert network.closed


def test_what_a_fall_to_another_source_says_in_the_last_window_is_not_lost(tmp_path: Path) -> None:
    folder, network = RunFolder(tmp_path), Network(traffic(100, 0), traffic(102, 2000))
    reporter = Reporter(2, folder)
    closing = threading.Event()

    def fall() -> None:
        assert closing.wait(10)
        reporter.tell("degraded", {"what": "network metrics", "detail": "probe gone"})

    network.on_read = fall
    reporter.measure(Telemetry(2, network, SystemSample))
    reporter.window(record(2))
    closer = threading.Thread(target=reporter.close)
    closer.start()
    wait_for(lambda: reporter._queue.qsize() == 2, "the window and the end to be queued")
    closing.set()
    closer.join()
    kinds = [json.loads(line)["kind"] for line in folder.worker_file(2).read_text().splitlines()]
    assert kinds == ["window", "degraded", "degraded"]
