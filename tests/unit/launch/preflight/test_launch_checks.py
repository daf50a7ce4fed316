"""What is refused before anything is started."""

from __future__ import annotations

import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.preflight.launch_checks import preflight


def config(**env: str) -> Config:
    data = {"comm": "local", "mode": "off", "cluster": {"workers": ({},)}, "command": ("true",), "env": env}
    return Config.model_validate(data)


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_shared_memory_is_on_or_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMIX_SHARED_MEMORY", value)
    preflight(config())


@pytest.mark.parametrize(("in_shell", "in_file"), [("off", {}), ("1", {"DYNAMIX_SHARED_MEMORY": "off"})])
def test_another_value_is_refused(in_shell: str, in_file: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMIX_SHARED_MEMORY", in_shell)
    with pytest.raises(UsageError, match="DYNAMIX_SHARED_MEMORY='off': expected 0"):
        preflight(config(**in_file))
