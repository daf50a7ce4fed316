"""Which workers a server takes for silent: the sources as they are, and a clock that a program sets (silence.cc)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.byteps_build.test_elastic import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.slow
def test_who_has_no_part_in_a_sum_that_others_wait_for_and_does_not_answer(tmp_path: Path) -> None:
    done = subprocess.run([build(tmp_path, "silence")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
