"""The tutorial: its scripts run under its commands."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT, environment, run_to_end, summary_in

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^```\n((?:torchrun|dynamix) .*)\n```$", TEXT, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, line: str) -> str:
    """A command of the page, with the programs of this environment."""
    program, *arguments = shlex.split(line)
    command = [shutil.which(program, path=str(Path(sys.executable).parent)) or program, *arguments]
    done = run_to_end(command, folder, environment(OMP_NUM_THREADS="1"), timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_script_before_runs(folder: Path) -> None:
    (line,) = re.findall(r"started by `(torchrun [^`]+)`", TEXT)
    assert run(folder, line).count("epoch 6: ") == 1


def test_only_three_lines_are_new() -> None:
    new = set(SCRIPTS["train.py"].splitlines()) - set(SCRIPTS["ddp.py"].splitlines())
    assert len([line for line in new if re.search(r"# [123]$", line)]) == 3


def test_the_script_after_runs_under_every_command(folder: Path) -> None:
    under_torchrun, uneven = COMMANDS
    assert run(folder, under_torchrun).count("epoch 6: ") == 1
    assert summary_in(folder)["exit_code"] == 0
    assert re.search(r"epoch 6: .* \((\d+), (?!\1)\d+, \d+\)", run(folder, uneven)), "sizes follow the speeds"
