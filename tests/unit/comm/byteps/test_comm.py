"""The BytePS data plane where it cannot start, and the removal of left-over segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dynamix_ps.byteps_build import install
from dynamix_ps.byteps_build.install import InstalledInfo
from dynamix_ps.byteps_build.recipe import sources_digest
from dynamix_ps.comm import open_comm
from dynamix_ps.comm.byteps import comm as byteps
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup import shared_memory

OURS = InstalledInfo("0.2.5.post15", ("torch",), "key", "ours", sources=sources_digest("ours"))
WORKER = {name: "1" for name in byteps._REQUIRED} | {"DMLC_ROLE": "worker"}


@pytest.mark.parametrize(
    ("info", "environ", "message"),
    [
        (InstalledInfo(), WORKER, "not installed(.|\n)*dynamix build-byteps"),
        (InstalledInfo("0.2.5", ("torch",)), WORKER, "0.2.5 not built by this project(.|\n)*dynamix build-byteps"),
        (InstalledInfo("0.2.5", (), "key", "ours"), WORKER, "with its torch plugin is needed"),
        (replace(OURS, sources="of before"), WORKER, "another version of this package(.|\n)*dynamix build-byteps"),
        (OURS, WORKER | {"DMLC_WORKER_ID": ""}, "DMLC_WORKER_ID not set(.|\n)*dynamix launch"),
        (OURS, WORKER | {"DMLC_ROLE": "server"}, "DMLC_ROLE is 'server', expected 'worker'"),
    ],
)
def test_what_is_missing_is_named(
    info: InstalledInfo, environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "installed_info", lambda: info)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentNotReady, match=message):
        open_comm("byteps").init()


def test_a_library_for_another_cpu_is_an_error_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = open_comm("byteps")

    def load(self: object) -> None:
        raise ImportError("the CPU of this host lacks avx2")

    monkeypatch.setattr(byteps, "_check_environment", lambda framework: None)
    monkeypatch.setattr(type(comm._plugin), "load", load)
    with pytest.raises(EnvironmentNotReady, match=r"cannot be loaded \(.* lacks avx2\); run: dynamix build-byteps"):
        comm.init()


def test_unknown_data_plane() -> None:
    with pytest.raises(ValueError, match="unknown data plane 'carrier pigeon'"):
        open_comm("carrier pigeon")


def test_only_segments_with_the_prefix_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    for name in ("run1-0-a", "run1-1-a", "run10-0-a", "other"):
        (tmp_path / name).touch()
    assert shared_memory.remove_segments("run1-") == ["run1-0-a", "run1-1-a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run10-0-a"]
    assert shared_memory.remove_segments("run1-") == []


def test_empty_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="not empty"):
        shared_memory.remove_segments("")
