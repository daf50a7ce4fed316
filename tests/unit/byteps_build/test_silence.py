"""Who is taken for silent: the sources as they are, and a clock and a network that programs play."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.byteps_build.test_elastic import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["silence", "echo"], ids=["a worker that others wait for", "a server whose answer comes late"]
)
def test_who_does_not_answer(program: str, tmp_path: Path) -> None:
    done = subprocess.run([build(tmp_path, program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
