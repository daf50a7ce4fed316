"""pip is found also where the environment has none, as those of uv."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from dynamix_ps.byteps_build import pip, toolchain
from dynamix_ps.errors import BuildError

FIND = importlib.util.find_spec


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else FIND(name))


@pytest.mark.parametrize("hidden", [(), ("pip",)])
def test_it_runs(monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]) -> None:
    hide(monkeypatch, *hidden)
    done = subprocess.run([*pip.pip(), "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("pip ")
    assert (".whl" in done.stdout) == bool(hidden)


def test_without_any_the_build_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "pip", "ensurepip")
    monkeypatch.setattr(pip, "_OF_DEBIAN", tmp_path)
    with pytest.raises(BuildError, match="pip is missing; uv pip install pip"):
        toolchain.check()
