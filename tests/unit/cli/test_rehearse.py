"""`dynamix rehearse`: what is over stays when a study ends early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamix_ps.cli.main import cli
from dynamix_ps.errors import JobFailed, UsageError
from dynamix_ps.rehearsal.study import Study
from tests.unit.rehearsal.test_study import SCRIPT

CLUSTER = "cluster: {workers: [{}, {}]}\n"


def rehearse(folder: Path, argument: str = "{seed}") -> Result:
    """Seeds 0, 1 and 2; the script fails with seed 2."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "cluster.yaml").write_text(CLUSTER)
    options = ["-c", str(folder / "cluster.yaml"), "--policy", "static", "--jobs", "1", "--out", str(folder / "study")]
    return CliRunner().invoke(
        cli, ["rehearse", *options, "--seeds", "3", "--", sys.executable, str(folder / "train.py"), argument]
    )


def test_a_run_that_fails_leaves_the_others(tmp_path: Path) -> None:
    result = rehearse(tmp_path)
    assert isinstance(result.exception, JobFailed) and "seed 2 failed" in str(result.exception)
    assert "2 of 3 runs are over and kept" in result.output
    assert f"--out {tmp_path / 'study'}" in result.output


def test_a_script_that_evaluates_seldom_is_not_told_to_go_on(tmp_path: Path) -> None:
    result = rehearse(tmp_path, "seldom")
    assert isinstance(result.exception, UsageError) and "expected 3 or more" in str(result.exception)
    assert "to go on" not in result.output


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "run_missing", interrupted)
    result = rehearse(tmp_path)
    assert result.exit_code != 0
    assert "0 of 3 runs are over and kept" in result.output
