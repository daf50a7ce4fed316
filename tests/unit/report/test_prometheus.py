import json
import math
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynamix_ps.config.schema import Config, Metrics
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import LinkView, Plan, ServerView, SystemSample, WindowRecord
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.report.exposition import COUNTERS, GAUGES
from dynamix_ps.report.prometheus import Exporter
from dynamix_ps.run_record.values import filled
from tests.unit.synthetic_run import config, link, measured, server, window

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "dynamix.json"
GPU = {"gpu_utilisation": 0.5, "gpu_memory_ratio": 0.25}

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def settings(**metrics: Any) -> Config:
    return config(3, metrics=Metrics(**metrics))


def record(rank: int, number: int = 0, **fields: Any) -> WindowRecord:
    return filled(WindowRecord, window(rank, number) | measured(rank, number) | fields)


def view(number: int = 0, version: int = 0, records: tuple[WindowRecord | None, ...] | None = None) -> View:
    machine = SystemSample(0.7, 2.0, 0.1, 1.5e8, 0.02, 0.5, 0.25)
    views = [filled(LinkView, link(rank, pull_rtt_s=0.001, slow="link" if rank == 1 else "")) for rank in range(3)]
    return View(
        window=number,
        plan=Plan(version, (64, 64, 64)),
        bounds=((32, 512),) * 3,
        records=records or tuple(record(rank, number, **GPU, units=38400.0, at_once=256.0) for rank in range(3)),
        links=tuple(views),
        servers=(filled(ServerView, server(system={}) | {"system": {}}), ServerView("scheduler", 1, 1, 0, 0, machine)),
    )


def decided(reward: float | None, **fields: Any) -> Decision:
    return Decision((64, 64, 64), reward, **fields)


def elastic(exporter: Exporter) -> None:
    """A worker of three is lost, and comes back."""
    exporter.members(3, 1)
    exporter.lost("worker")
    exporter.members(2, 1)
    exporter.members(3, 1)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    started = Exporter(settings(), "demo-1")
    yield started
    started.close()


def scrape(address: str) -> Scraped:
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped_with_all(exporter: Exporter) -> Scraped:
    """After all that an exporter can be told."""
    address = exporter.start() or ""
    exporter.observe(view(0, version=0), decided(0.5), decision_s=0.1)
    exporter.observe(view(1, version=1), decided(0.5))
    exporter.degraded("policy")
    elastic(exporter)
    return scrape(address)


def value(scraped: Scraped, name: str, **labels: str) -> float | None:
    return scraped.get((f"dynamix_{name}", frozenset((labels | {"run": "demo-1"}).items())))


def test_values_over_http(exporter: Exporter) -> None:
    address = exporter.start()
    assert address is not None and re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/metrics", address)
    exporter.observe(view(number=4, version=2), decided(0.5), decision_s=0.02)
    found = scrape(address)
    expected = record(1, 4)
    assert value(found, "worker_push_bytes_per_second", worker="1") == expected.push_bytes_per_s
    assert value(found, "worker_samples_per_second", worker="1") == 64 * 20
    assert value(found, "worker_time_ratio", worker="0", part="wait") == pytest.approx(0.3)
    assert value(found, "worker_network_source_info", worker="2", source="ebpf") == 1
    assert value(found, "link_slow", worker="1", cause="link") == 1
    assert value(found, "link_slow", worker="0", cause="link") == 0
    assert value(found, "server_unread_bytes", server="server-0") == 2e5
    assert value(found, "server_cpu_used_cores", server="scheduler") == 0.7
    assert (value(found, "window"), value(found, "plan_version")) == (4, 2)
    assert (value(found, "global_batch_size"), value(found, "reward")) == (192, 0.5)
    signal = record(0, 4).noise_signal
    assert value(found, "gradient_noise_scale") == pytest.approx(record(0, 4).noise_variance / signal)
    assert value(found, "decision_seconds_count") == 1
    assert value(found, "decision_seconds_sum") == pytest.approx(0.02)


def test_unknown_values_are_not_exported(exporter: Exporter) -> None:
    address = exporter.start() or ""
    unknown = record(0, rtt_s=None, accuracy=None, push_bytes_per_s=None, network_source="none")
    exporter.observe(view(records=(unknown, None, record(2))), decided(None))
    found = scrape(address)
    assert value(found, "worker_rtt_seconds", worker="0") is None
    assert value(found, "worker_rtt_seconds", worker="2") == record(2).rtt_s
    assert not any(("worker", "1") in labels for name, labels in found if name.startswith("dynamix_worker"))
    assert value(found, "reward") is None
    assert value(found, "push_bytes_total", worker="0") is None  # nothing known was counted
    assert value(found, "samples_total", worker="0") == 64 * 20
    assert not any(math.isnan(number) for number in found.values())


def test_a_value_that_becomes_unknown_disappears(exporter: Exporter) -> None:
    address = exporter.start() or ""
    exporter.observe(view(), decided(1.0))
    assert value(scrape(address), "reward") == 1.0
    exporter.observe(view(1, records=(record(0), None, None)), decided(None))
    found = scrape(address)
    assert value(found, "reward") is None
    assert value(found, "worker_batch_size", worker="1") is None
    assert value(found, "samples_total", worker="1") == 64 * 20  # counters stay


def test_counters_grow(exporter: Exporter) -> None:
    address = exporter.start() or ""
    exporter.observe(view(0, version=1), decided(None))
    exporter.observe(view(1, version=3), decided(None))
    exporter.observe(view(2, version=3), decided(None, fallback=True, note="proportional shares for 2 windows"))
    exporter.observe(view(3, version=3), decided(None, fallback=True))
    exporter.degraded("policy")
    exporter.degraded("policy")
    found = scrape(address)
    assert value(found, "windows_total") == 4
    assert value(found, "safety_net_total") == 1
    assert value(found, "safety_net_windows_total") == 2
    assert value(found, "plans_total") == 2  # 2 and 3 came after the first window seen
    assert value(found, "samples_total", worker="0") == 4 * 64 * 20
    assert value(found, "gradient_bytes_total", worker="0") == 4 * 25_000_000
    retransmits = sum(record(1, number).retransmits_per_s for number in range(4))  # windows of one second
    assert value(found, "retransmits_total", worker="1") == pytest.approx(retransmits)
    assert value(found, "degraded_total", what="policy") == 2


def test_members_stay_from_window_to_window(exporter: Exporter) -> None:
    address = exporter.start() or ""
    exporter.observe(view(0), decided(None))
    assert value(scrape(address), "members", role="worker") is None, "the job is not elastic"
    elastic(exporter)
    exporter.lost("server")
    assert value(scrape(address), "members", role="server") == 1
    exporter.members(3, 0)
    assert value(scrape(address), "members", role="server") == 0, "a page without a new window has it"
    exporter.observe(view(1), decided(None))
    found = scrape(address)
    assert [value(found, "members", role=role) for role in ("worker", "server")] == [3, 0]
    assert [value(found, "lost_total", role=role) for role in ("worker", "server")] == [1, 1]


def test_every_metric_of_the_tables_can_be_had(exporter: Exporter) -> None:
    names = {name for name, _ in scraped_with_all(exporter)}
    assert {*GAUGES, *(f"{name}_total" for name in COUNTERS)} <= names


def test_off(exporter: Exporter) -> None:
    off = Exporter(settings(prometheus_port=None), "demo-1")
    assert off.start() is None
    off.observe(view(), decided(None))
    off.close()


def test_a_taken_port_is_told_and_all_else_works(exporter: Exporter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = Exporter(settings(prometheus_port=port), "demo-1")
        with pytest.raises(
            EnvironmentNotReady, match=rf"127\.0\.0\.1:{port}: Address already in use; .*prometheus_port"
        ):
            refused.start()
    refused.observe(view(), decided(None))
    refused.close()


def test_a_closed_endpoint_frees_its_port(exporter: Exporter) -> None:
    address = exporter.start() or ""
    port = int(address.split(":")[2].split("/")[0])
    scrape(address)
    exporter.close()
    exporter.close()
    again = Exporter(settings(prometheus_port=port), "demo-1")
    assert again.start() == address
    again.close()


def test_ipv6_address_is_a_url() -> None:
    exporter = Exporter(settings(prometheus_host="::1"), "demo-1")
    try:
        address = exporter.start() or ""
        assert address.startswith("http://[::1]:")
        assert value(scrape(address), "decision_seconds_count") == 0
    except EnvironmentNotReady as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    finally:
        exporter.close()


class TestDashboard:
    """Every metric and label in the queries of the Grafana dashboard is one that the exporter has."""

    @pytest.fixture
    def dashboard(self) -> dict[str, Any]:
        return json.loads(DASHBOARD.read_text())

    def expressions(self, dashboard: dict[str, Any]) -> list[str]:
        return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]

    def test_queries_match_the_exporter(self, exporter: Exporter, dashboard: dict[str, Any]) -> None:
        exported: dict[str, set[str]] = {}
        for name, labels in scraped_with_all(exporter):
            exported.setdefault(name, set()).update(label for label, _ in labels)
        used = set()
        for expression in self.expressions(dashboard):
            metrics = re.findall(r"\b(dynamix_\w+)\{([^}]*)\}", expression)
            assert len(metrics) == expression.count("dynamix_"), expression
            for name, selector in metrics:
                assert name in exported, name
                assert set(re.findall(r"(\w+)=~?\"", selector)) <= exported[name], expression
                assert 'run=~"$run"' in selector, expression
                grouping = re.findall(r"\bby \(([^)]*)\)", expression)
                assert {label.strip() for group in grouping for label in group.split(",")} <= exported[name]
                used.add(name)
        assert len(used) > 25

    def test_legends_use_labels_that_are_there(self, exporter: Exporter, dashboard: dict[str, Any]) -> None:
        known = {"run", "worker", "server", "part", "source", "cause", "what", "role"}
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                assert set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) <= known

    def test_panels_have_titles_units_and_the_variable_datasource(self, dashboard: dict[str, Any]) -> None:
        names = {variable["name"] for variable in dashboard["templating"]["list"]}
        assert names == {"datasource", "run"}
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        for panel in panels:
            assert panel["title"] and panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"]

    def test_panels_do_not_overlap(self, dashboard: dict[str, Any]) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells
