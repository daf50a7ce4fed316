"""What the arbitrator learns from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.arbitrator.__main__ import read_settings
from dynamix_ps.certificates import OFF
from dynamix_ps.errors import EnvironmentNotReady


@pytest.fixture
def cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RUN_DIR", "RUN_ID", "TOKEN", "ARBITRATOR"):
        monkeypatch.setenv(f"DYNAMIX_{name}", "x")
    monkeypatch.setenv("DYNAMIX_TLS", OFF)
    monkeypatch.setenv("DYNAMIX_CONFIG", str(tmp_path / "cluster.yaml"))
    monkeypatch.delenv("DMLC_NUM_SERVER", raising=False)
    return tmp_path / "cluster.yaml"


@pytest.mark.parametrize(
    ("text", "started", "n_servers"),
    [
        ("cluster: {servers: auto, workers: [{}, {}, {}]}", "3", 3),  # by hand, on three hosts
        ("cluster: {servers: 2, workers: [{}, {}]}", "2", 2),
        ("cluster: {servers: 2, workers: [{}, {}]}", None, None),
        ("{comm: gloo, cluster: {workers: [{}, {}]}}", "0", None),
        ("{comm: gloo, cluster: {workers: [{}, {}]}}", None, None),
    ],
)
def test_servers_are_those_that_were_started(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch, text: str, started: str | None, n_servers: int | None
) -> None:
    cluster_file.write_text(text)
    if started is not None:
        monkeypatch.setenv("DMLC_NUM_SERVER", started)
    assert read_settings().n_servers == n_servers


@pytest.mark.parametrize(("started", "named"), [("", "not set"), ("0", "'0'"), ("three", "'three'")])
def test_auto_without_a_number_says_what_to_set(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch, started: str, named: str
) -> None:
    cluster_file.write_text("cluster: {servers: auto, workers: [{}, {}, {}]}")
    monkeypatch.setenv("DMLC_NUM_SERVER", started)
    with pytest.raises(EnvironmentNotReady, match=f"DMLC_NUM_SERVER is {named}, expected the number of servers"):
        read_settings()
