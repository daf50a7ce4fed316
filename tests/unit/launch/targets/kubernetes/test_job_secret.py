"""The secret of a job: what it is made of, and what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.targets.kubernetes.job_secret import TOKEN, JobSecret
from tests.job_secret import job_secret


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = job_secret(tmp_path / "own")
    assert JobSecret.load(tmp_path / "own") == made
    for name, text in made.files.items():
        assert (tmp_path / "own" / name).read_text() == text


def test_it_shows_neither_token_nor_key(tmp_path: Path) -> None:
    made = job_secret(tmp_path / "own")
    assert made.token not in repr(made)
    assert made.certificates.key not in repr(made)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, "token: No such file or directory; mount the job's Secret"),
        ("short", "token has 5 characters, expected 64 hexadecimal digits"),
        ("x" * 64, "token has 64 characters, expected 64 hexadecimal digits"),
        ("\u00e4" * 64, "mount the job's Secret"),
    ],
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str | None, reason: str) -> None:
    job_secret(tmp_path / "own")
    (tmp_path / "own" / TOKEN).unlink()
    if token is not None:
        (tmp_path / "own" / TOKEN).write_text(token)
    with pytest.raises(EnvironmentNotReady, match=f"^token of the job: .*{reason}"):
        JobSecret.load(tmp_path / "own")


def test_a_folder_without_certificates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"^certificates: .*ca\.crt"):
        JobSecret.load(tmp_path)
