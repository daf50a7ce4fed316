"""Settings of a worker: its calls to another machine are encrypted, or the cluster file says that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Stigmergy
from dynamix_ps.errors import EnvironmentNotReady
from worker_hooks.settings import Settings


@pytest.mark.parametrize(
    ("mode", "insecure", "refused"),
    [("observe", "false", True), ("observe", "true", False), ("'off'", "false", False)],
)
def test_a_worker_does_not_send_its_token_in_the_clear_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, insecure: str, refused: bool
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"cluster: {{workers: [{{}}, {{}}], insecure: {insecure}}}\nmode: {mode}\n")
    for name in (variables.TLS, variables.REHEARSAL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variables.CONFIG, str(file))
    monkeypatch.setenv(variables.ARBITRATOR, "192.0.2.1:7117")  # an address for documentation, which no machine has
    if refused:
        with pytest.raises(EnvironmentNotReady, match="DYNAMIX_TLS is not set"):
            Settings.from_environment()
    else:
        arbitrator = Settings.from_environment().arbitrator
        assert arbitrator is None if mode == "'off'" else arbitrator and arbitrator.certificates is None


@pytest.mark.parametrize(
    ("policy", "mode", "own"), [("stigmergy", "adapt", True), ("ppo", "adapt", False), ("stigmergy", "'off'", False)]
)
def test_workers_choose_their_own_sizes_by_one_policy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, mode: str, own: bool
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"cluster: {{workers: [{{}}, {{}}]}}\nmode: {mode}\npolicy: {{name: {policy}}}\n")
    monkeypatch.delenv(variables.REHEARSAL, raising=False)
    monkeypatch.setenv(variables.CONFIG, str(file))
    monkeypatch.setenv(variables.ARBITRATOR, "127.0.0.1:7117")
    settings = Settings.from_environment()
    assert (settings.own_sizes is not None) is own
    assert (settings.arbitrator is None) == (policy == "stigmergy")


def test_the_numbers_of_the_traces_reach_the_worker_and_must_be_equal_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: {workers: [{}, {}]}\npolicy: {name: stigmergy, stigmergy: {alarm: 1.5, crowding: 0}}\n")
    monkeypatch.delenv(variables.REHEARSAL, raising=False)
    monkeypatch.setenv(variables.CONFIG, str(file))
    settings = Settings.from_environment()
    assert settings.own_sizes == Stigmergy(alarm=1.5, crowding=0)
    own = {name: value for name, value in settings.shared.items() if name.startswith("policy.")}
    assert own == {
        "policy.name": "stigmergy",
        "policy.stigmergy.evaporation": "0.5",
        "policy.stigmergy.alarm": "1.5",
        "policy.stigmergy.calming": "0.35",
        "policy.stigmergy.crowding": "0.0",
    }


ELASTIC = {"elastic.min_workers": "2", "elastic.keep": "local"}
OF_WORKERS = {"cluster.workers[0]": "6 (2 to 64)", "cluster.workers[1]": "64 (2 to 80)"}


@pytest.mark.parametrize(
    ("elastic", "shared"), [("min_workers: 2, keep: local", ELASTIC | OF_WORKERS), ("keep: local", {})]
)
def test_what_workers_that_come_and_go_decide_by_must_be_equal_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elastic: str, shared: dict[str, str]
) -> None:
    file = tmp_path / "cluster.yaml"
    workers = "[{batch: 6}, {max: 80}]"
    file.write_text(
        f"cluster: {{workers: {workers}}}\nbatch: {{min: 2, max: 64}}\nelastic: {{{elastic}}}\ncomm: gloo\n"
    )
    monkeypatch.delenv(variables.REHEARSAL, raising=False)
    monkeypatch.setenv(variables.CONFIG, str(file))
    told = Settings.from_environment().shared
    assert {name: value for name, value in told.items() if name.startswith(("elastic", "cluster"))} == shared
