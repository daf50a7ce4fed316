"""The monitor of a server or scheduler: what it writes and sends; its faults never affect the role."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config
from dynamix_ps.errors import ConfigError, EnvironmentNotReady
from dynamix_ps.messages import Flow, RoleReport, SystemSample
from dynamix_ps.metrics.network.connection import Connection
from dynamix_ps.metrics.network.meter import Totals, Traffic, TrafficSource
from dynamix_ps.run_record.json_lines import JsonLines
from server_hooks.monitor import RoleMonitor, data_plane, monitored, role_monitor
from tests.control_plane import config

PATIENCE_S = 30.0
FLOW = Flow("10.0.0.2:9000", "10.0.0.1:40000", 0.0, 500.0, 0.0)


def traffic(**changes: Any) -> Traffic:
    base: dict[str, Any] = {
        "flows": (FLOW,),
        "total": Totals(0.0, 500.0, 0.0, math.nan),
        "rtt_s": math.nan,
        "unsent_bytes": 0.0,
        "unread_bytes": 0.0,
        "source": "sockdiag",
        "taken_s": 100.0,
        "shared": False,
    }
    return Traffic(**(base | changes))


class FakeNetwork:
    def __init__(self, *readings: Traffic | Exception) -> None:
        self.readings = list(readings)
        self.closed = False

    def read(self) -> Traffic:
        answer = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


class FakeSystem:
    def sample(self) -> SystemSample:
        return SystemSample(cpu_ratio=0.25)


class Sent:
    """Takes reports in place of an observer."""

    def __init__(self) -> None:
        self.reports: queue.Queue[RoleReport] = queue.Queue()
        self.closed = False

    def send(self, report: RoleReport) -> None:
        self.reports.put(report)

    def close(self) -> None:
        self.closed = True


def monitor(
    network: TrafficSource | Callable[[Any], TrafficSource],
    file: Path | None,
    sent: Sent | None,
    interval_s: float = 0.001,
) -> RoleMonitor:
    make = network if callable(network) else lambda on_event: network
    lines = JsonLines(file) if file else None
    return RoleMonitor("server-1", "server", interval_s, make, FakeSystem(), lines, sent)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_reports_are_sent_and_written_until_it_is_stopped(tmp_path: Path) -> None:
    network, sent, file = FakeNetwork(traffic()), Sent(), tmp_path / "roles" / "server-1.jsonl"
    watching = monitor(network, file, sent)
    watching.start()
    reports = [sent.reports.get(timeout=PATIENCE_S) for _ in range(3)]
    watching.stop()
    assert network.closed and sent.closed
    first = reports[0]
    assert (first.name, first.role, first.rank, first.time_s) == ("server-1", "server", -1, 100.0)
    assert (first.flows, first.system.cpu_ratio, first.network_source) == ((FLOW,), 0.25, "sockdiag")
    assert first.network_age_s > 0
    written = lines(file)
    assert len(written) >= 3
    assert written[0]["kind"] == "role"
    assert written[0]["flows"][0]["bytes_in"] == 500.0
    assert written[0]["flows"][0]["rtt_s"] is None


def test_a_last_report_is_made_when_it_is_stopped(tmp_path: Path) -> None:
    sent = Sent()
    watching = monitor(FakeNetwork(traffic()), None, sent, interval_s=3600)
    watching.start()
    watching.stop()
    assert sent.reports.qsize() == 1


def test_counters_of_a_shared_namespace_are_not_this_roles_own() -> None:
    sent = Sent()
    watching = monitor(FakeNetwork(traffic(source="procfs", shared=True)), None, sent)
    watching.start()
    report = sent.reports.get(timeout=PATIENCE_S)
    watching.stop()
    assert (report.network_source, report.flows) == ("procfs", ())


def test_without_any_source_the_machine_is_still_reported() -> None:
    sent = Sent()
    watching = monitor(FakeNetwork(traffic(source="none", flows=(), taken_s=0.0)), None, sent)
    watching.start()
    report = sent.reports.get(timeout=PATIENCE_S)
    watching.stop()
    assert report.time_s > 1e9
    assert math.isnan(report.network_age_s)
    assert report.system.cpu_ratio == 0.25


def test_events_of_the_network_are_lines_beside_the_reports(tmp_path: Path) -> None:
    file = tmp_path / "server-1.jsonl"

    def make(on_event: Callable[[str, dict[str, Any]], None]) -> TrafficSource:
        on_event("degraded", {"what": "network metrics", "detail": "no eBPF"})
        on_event("recovered", {"what": "network metrics"})
        return FakeNetwork(traffic())

    watching = monitor(make, file, None, interval_s=3600)
    watching.start()
    watching.stop()
    assert [line["kind"] for line in lines(file)] == ["degraded", "recovered", "role"]
    assert lines(file)[0]["detail"] == "no eBPF"
    assert lines(file)[0]["time_s"] > 1e9


@pytest.mark.parametrize("fails", ["open", "read"])
def test_a_fault_of_ours_ends_the_reports_and_is_said_once(tmp_path: Path, fails: str) -> None:
    def refuse(on_event: object) -> TrafficSource:
        raise ValueError("broken")

    file = tmp_path / "server-1.jsonl"
    watching = monitor(refuse if fails == "open" else FakeNetwork(ValueError("broken")), file, None)
    watching.start()
    watching._thread.join(PATIENCE_S)
    watching.stop()
    (line,) = lines(file)
    assert line["kind"] == "degraded"
    assert "server-1 stops reporting: ValueError('broken')" in line["detail"]


def connection(remote: str) -> Connection:
    return Connection("1", 1, 1, "127.0.0.1:5000", remote, 0, 0, 0)


def test_connections_to_the_arbitrator_are_no_data_plane() -> None:
    keep = data_plane("localhost:7070")
    assert not keep(connection("127.0.0.1:7070"))
    assert keep(connection("127.0.0.1:7071"))
    assert keep(connection("10.0.0.1:7070"))
    assert keep(connection("*"))
    assert not data_plane("[::1]:7070")(connection("[::1]:7070"))
    assert data_plane(None)(connection("127.0.0.1:7070"))
    assert data_plane("nonsense")(connection("127.0.0.1:7070"))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        variables.CONFIG,
        variables.RUN_DIR,
        variables.ARBITRATOR,
        variables.TOKEN,
        variables.TLS,
        variables.RUN_ID,
        variables.ROLE_NAME,
    ):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.yaml"
    monkeypatch.setenv(variables.CONFIG, str(file))
    return file


def test_without_a_cluster_file_or_with_mode_off_there_is_no_monitor(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.write_text(dump_config(config(mode="off")))
    assert role_monitor("server") is None
    with monitored("server"):
        pass
    monkeypatch.delenv(variables.CONFIG)
    assert role_monitor("server") is None


def test_a_role_that_was_started_by_hand_is_named_after_host_and_process(environment: Path) -> None:
    environment.write_text(dump_config(config()))
    found = role_monitor("server")
    assert found is not None
    assert found._name.startswith("server@")


def test_reports_go_to_another_machine_encrypted_or_not_at_all(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.write_text(dump_config(config()))
    for name, value in ((variables.ARBITRATOR, "192.0.2.1:7117"), (variables.RUN_ID, "r"), (variables.TOKEN, "t")):
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentNotReady, match=r"192\.0\.2\.1:7117, and DYNAMIX_TLS is not set"):
        role_monitor("server")


def test_a_wrong_cluster_file_is_an_error(environment: Path) -> None:
    environment.write_text("cluster: 5\n")
    with pytest.raises(ConfigError):
        role_monitor("server")
