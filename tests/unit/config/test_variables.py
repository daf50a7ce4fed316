"""The table of run variables lists what the code reads and sets."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import dynamix_ps
from dynamix_ps.config.variables import OF_ONE_RUN, VARIABLES, allowed_in_cluster_file, cache_dir, home_dir

ROOT = Path(dynamix_ps.__file__).parents[1]
NAME = re.compile(r"\bDYNAMIX_[A-Z_]*[A-Z](?![A-Z_])")
GUARD = re.compile(r"_H$")  # include guards of C headers


def test_the_table_lists_every_variable_of_ours_that_the_code_names() -> None:
    rooms = [ROOT / room for room in ("dynamix_ps", "worker_hooks", "server_hooks", "benchmarks")]
    files = [file for room in rooms for file in room.rglob("*.py")]
    found = {name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))}
    listed = {variable.name for variable in VARIABLES if variable.name.startswith("DYNAMIX_")}
    assert {name for name in found if not GUARD.search(name)} == listed


def test_every_variable_has_one_row_and_is_told_in_whole_sentences() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(set(names)) == len(names)
    for variable in VARIABLES:
        assert variable.meaning.endswith(".")
        assert variable.read_in


def test_what_belongs_to_one_run_never_stands_in_a_cluster_file() -> None:
    assert not any(map(allowed_in_cluster_file, OF_ONE_RUN))
    assert not allowed_in_cluster_file("DMLC_INTERFACE")  # every name of ps-lite
    assert all(map(allowed_in_cluster_file, ("DYNAMIX_DATA", "BYTEPS_LOG_LEVEL", "OMP_NUM_THREADS", "MINE")))


def test_a_user_id_without_a_name_and_home_has_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "DYNAMIX_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    assert home_dir() == Path("/")
    assert cache_dir() == "/.cache/dynamix"
