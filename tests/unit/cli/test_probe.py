"""What `dynamix probe` prints: the table, the lines, the JSON, and where it looks for a probe."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dynamix_ps.cli import probe as command
from dynamix_ps.cli.probe import as_object, render
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.metrics.network.probe.host_traffic import PeerTraffic
from dynamix_ps.metrics.network.probe.protocol import ProbeSnapshot
from tests.probes import FakeCollector, probe_in_thread

PUSH = PeerTraffic(
    "0badcafe", "vm", "worker-0", "server-0", "push", 2, 12_345_678.0, 5e5, 1.5, 0.00025, 0.0, "ebpf", 1_000_000.0
)
OTHER = PeerTraffic(
    "0badcafe", "vm", "worker-0", "10.0.0.9:80", "", 1, math.nan, math.nan, math.nan, math.nan, 0.0, "ebpf", 1e6
)
SNAPSHOT = ProbeSnapshot("vm", 1_000_000.0, 0, 0.0, (), ())


def shown(*pairs: PeerTraffic, snapshot: ProbeSnapshot = SNAPSHOT, cpu: float = 0.0025) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=150).print(render(pairs, snapshot, cpu))
    return [line.split() for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_per_pair_and_dashes_for_what_is_unknown() -> None:
    lines = shown(PUSH, OTHER)
    assert " ".join(lines[0]) == "vm: probe uses 0.25 % of a core"
    assert lines[3][:8] == ["worker-0", "server-0", "push", "12.346", "0.500", "1.5", "0.250", "ebpf"]
    assert lines[4][:8] == ["worker-0", "10.0.0.9:80", "-", "-", "-", "-", "-", "ebpf"]


def test_runs_and_hosts_are_shown_where_there_are_several() -> None:
    assert shown(PUSH)[2][0] == "from"
    elsewhere = PeerTraffic("1badcafe", "b", "server-0", "worker-0", "pull", 1, 1.0, 1.0, 0.0, 0.1, 0.0, "ebpf", 1e6)
    lines = shown(PUSH, elsewhere)
    assert lines[2][:2] == ["run", "host"]
    assert lines[4][:4] == ["1badcafe", "b", "server-0", "worker-0"]


def test_lost_connections_and_an_empty_table_are_said() -> None:
    lines = shown(snapshot=ProbeSnapshot("vm", 1.0, 7, 0.0, (), ()))
    assert " ".join(lines[0]).endswith("core, 7 connections lost")
    assert "none of your processes" in " ".join(lines[-1])


def test_unknown_is_null_for_scripts() -> None:
    data = json.loads(json.dumps(as_object((PUSH, OTHER), SNAPSHOT, math.nan), allow_nan=False))
    assert (data["host"], data["lost"], data["probe_cpu"]) == ("vm", 0, None)
    assert data["talks"][0]["out_bytes_per_s"] == 12_345_678.0
    assert data["talks"][1]["out_bytes_per_s"] is None


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No probe anywhere, until a test makes one."""
    monkeypatch.setattr(command, "DEFAULT_SOCKET", str(tmp_path / "host.sock"))
    monkeypatch.setattr(command, "own_scratch_folders", lambda: tmp_path.glob("dynamix-*"))
    monkeypatch.delenv("DYNAMIX_PROBE", raising=False)
    yield tmp_path


def test_the_probe_of_a_run_is_found(places: Path) -> None:
    (places / "dynamix-0badcafe").mkdir()
    path = places / "dynamix-0badcafe" / "probe.sock"
    with probe_in_thread(path, FakeCollector()):
        source = command._find_probe(None)
        assert source.path == str(path)
        source.close()


def test_the_probe_of_the_host_comes_first_and_a_chosen_one_before(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "dynamix-0badcafe").mkdir()
    for place in ("host.sock", "dynamix-0badcafe/probe.sock", "mine.sock"):
        with (
            probe_in_thread(places / "host.sock", FakeCollector()),
            probe_in_thread(places / "dynamix-0badcafe" / "probe.sock", FakeCollector()),
            probe_in_thread(places / "mine.sock", FakeCollector()),
        ):
            chosen = None if place == "host.sock" else str(places / place)
            source = command._find_probe(chosen)
            assert source.path == str(places / place)
            source.close()
            monkeypatch.setenv("DYNAMIX_PROBE", str(places / place))
            source = command._find_probe(None)
            assert source.path == str(places / place)
            source.close()
            monkeypatch.delenv("DYNAMIX_PROBE")


def test_every_place_without_a_probe_is_named(places: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"host\.sock: there is no such socket\nno network probe answers"):
        command._find_probe(None)
    with pytest.raises(EnvironmentNotReady, match="/nowhere: there is no such socket"):
        command._find_probe("/nowhere")
