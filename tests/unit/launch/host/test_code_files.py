"""Which folder has the code of a job, and which files there are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.launch.host import code_files
from dynamix_ps.launch.host.code_files import TooManyFilesError, code_folder, digest_of_all, python_files, script_of

HOME = Path("/home/me")
JOB = HOME / "job"


@pytest.mark.parametrize(
    ("command", "cwd", "folder"),
    [
        (("python", "train.py"), JOB, JOB),
        (("python3", "scripts/train.py", "--lr", "1"), JOB, JOB),
        (("python", "-m", "job.train"), JOB, JOB),
        (("bash", "run.py"), JOB, JOB),
        ((), JOB, JOB),
        (("python", "/srv/train.py"), JOB, Path("/srv")),
        (("python", "../other/train.py"), JOB, HOME / "other"),
        (("python", "job/train.py"), HOME, JOB),
        (("python", "me/job/train.py"), Path("/home"), JOB),
    ],
)
def test_the_folder(command: tuple[str, ...], cwd: Path, folder: Path) -> None:
    assert code_folder(command, cwd, HOME) == folder


def test_the_script() -> None:
    assert script_of(("/usr/bin/python3", "a.py")) == "a.py"
    assert script_of(("python", "-m", "a")) is None


def test_the_files_that_count(tmp_path: Path) -> None:
    for path in ("a.py", "lib/b.py", ".git/c.py", "runs/x/d.py", "env/pyvenv.cfg", "env/e.py", "lib/__pycache__/f.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    (tmp_path / "data.bin").write_text("data")
    found = python_files(tmp_path)
    assert set(found) == {"a.py", "lib/b.py"}
    (tmp_path / "data.bin").write_text("other data")
    assert python_files(tmp_path) == found
    (tmp_path / "a.py").write_text("changed")
    changed = python_files(tmp_path)
    assert changed["a.py"] != found["a.py"]
    assert changed["lib/b.py"] == found["lib/b.py"]
    assert digest_of_all(changed) != digest_of_all(found)
    assert python_files(tmp_path / "none") == {}


def test_a_folder_with_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}.py").touch()
    monkeypatch.setattr(code_files, "_MOST_FILES", 2)
    with pytest.raises(TooManyFilesError, match="has more than 2 Python files"):
        python_files(tmp_path)
