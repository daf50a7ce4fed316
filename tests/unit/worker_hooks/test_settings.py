"""Settings of a worker: its calls to another machine are encrypted, or the cluster file says that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.config import variables
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
