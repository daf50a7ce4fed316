"""Processes of this project import nothing that lies in their working folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import dynamix_ps
from dynamix_ps import own_process
from dynamix_ps.launch.preflight import doctor
from tests.launching import environment, run_to_end

NAMES = ("random", "queue", "numpy", "click", "benchmarks", "byteps")
TELL = "import json, sys; print(json.dumps([sys.argv[1:], sys.path]))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with names that others have too; beside it one with a module."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working folder')")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "told.py").write_text(TELL)
    return tmp_path


def run(command: tuple[str, ...], cwd: Path, **variables: str) -> str:
    done = run_to_end(command, cwd, environment(**variables))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("safe", ["", "1"])
@pytest.mark.parametrize("given", ["modules", ":modules", ".:modules", "{here}:modules:"])
def test_a_module_is_run_without_the_working_folder(folder: Path, given: str, safe: str) -> None:
    path = given.format(here=folder)
    said = run(own_process.command("told", "a b", "-c"), folder, PYTHONPATH=path, PYTHONSAFEPATH=safe)
    arguments, found = json.loads(said)
    assert arguments == ["a b", "-c"]
    assert str(folder / "modules") in found, "what the user names stays"
    assert not {"", ".", str(folder), os.path.dirname(own_process.__file__)} & set(found)
    assert own_process.ROOT in found


def test_the_command_is_run_as_a_module_from_any_folder(folder: Path) -> None:
    assert "launch" in run((sys.executable, "-m", "dynamix_ps", "--help"), folder)


def test_our_packages_are_found_where_nothing_names_them(folder: Path) -> None:
    (folder / "modules" / "told.py").write_text("import worker_hooks, server_hooks; print(worker_hooks.__file__)")
    said = run(own_process.command("told"), folder, PYTHONPATH="modules")
    assert Path(said.strip()).parent.parent.is_dir()
    assert Path(own_process.ROOT, "dynamix_ps") == Path(dynamix_ps.__file__).parent


def test_a_checkout_that_is_the_working_folder_keeps_its_place_in_the_path() -> None:
    root = own_process.ROOT
    code = "import json, sys; from dynamix_ps.own_process import leave_out_working_folder as leave\n"
    code += "leave(); print(json.dumps(sys.path))"
    found = json.loads(run((sys.executable, "-c", code), Path(root), PYTHONPATH=root))
    assert found[0] == root


def test_the_doctor_tries_what_is_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert doctor._import_problem("numpy") == ""
