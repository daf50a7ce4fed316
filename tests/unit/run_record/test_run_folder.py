import json
import os
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import config, new_folder

NOON_IN_UTC = datetime(2026, 1, 2, 14, 0, 0, tzinfo=timezone(timedelta(hours=2)))


def test_name_holds_run_utc_time_and_id(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", NOON_IN_UTC, "ab12")
    assert folder.path == tmp_path / "demo-20260102T120000Z-ab12"
    for part in (folder.logs_dir, folder.plots_dir, folder.workers_dir, folder.arbitrator_dir, folder.checkpoints_dir):
        assert part.is_dir()
        assert part.parent == folder.path


def test_existing_folder_is_not_reused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "demo", NOON_IN_UTC, "ab12")
    with pytest.raises(EnvironmentNotReady, match=r"demo-20260102T120000Z-ab12.*run_dir"):
        RunFolder.create(tmp_path, "demo", NOON_IN_UTC, "ab12")


def test_the_folder_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "runs", "demo", NOON_IN_UTC, "ab12")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_partial_checkpoints_are_removed_and_whole_ones_stay(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo", NOON_IN_UTC, "ab12")
    for name in ("last.pt", "last.1.pt", ".last.pt.abc.partial", ".last.pt.arriving"):
        (folder.checkpoints_dir / name).write_text("")
    folder.remove_partial_checkpoints()
    assert {file.name for file in folder.checkpoints_dir.iterdir()} == {"last.pt", "last.1.pt"}


def test_base_that_is_a_file_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(EnvironmentNotReady, match="run_dir"):
        RunFolder.create(tmp_path / "runs", "demo", NOON_IN_UTC, "ab12")


@pytest.mark.parametrize(("env", "mode"), [({}, 0o644), ({"PASSWORD": "x"}, 0o600)])
def test_files_that_may_hold_passwords_are_for_this_user_alone(tmp_path: Path, env: dict[str, str], mode: int) -> None:
    folder = RunFolder.create(tmp_path, "demo", NOON_IN_UTC, "ab12")
    before = os.umask(0o022)
    try:
        folder.write_config(config().model_copy(update={"env": env}))
        write_manifest(folder, config().model_copy(update={"env": env}), [])
    finally:
        os.umask(before)
    for file in (folder.config_file, folder.manifest_file):
        assert stat.S_IMODE(file.stat().st_mode) == mode, file


def test_latest_moves_on_and_survives_a_move_of_the_base(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "runs", "demo", NOON_IN_UTC, "aa")
    second = RunFolder.create(tmp_path / "runs", "demo", NOON_IN_UTC, "bb")
    first.link_latest()
    second.link_latest()
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest").resolve() == tmp_path / "moved" / second.path.name
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == sorted(
        [first.path.name, second.path.name, "latest"]
    )


def test_latest_that_is_a_real_folder_is_left_alone(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    (tmp_path / "latest").mkdir()
    with pytest.raises(EnvironmentNotReady, match="not a symbolic link"):
        folder.link_latest()
    assert not (tmp_path / "latest").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["latest", folder.path.name])


def test_open_follows_latest_and_refuses_other_folders(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    assert RunFolder.open(folder.link_latest()).path == folder.path
    with pytest.raises(UsageError, match="runs/latest"):
        RunFolder.open(tmp_path)


def test_manifest_names_versions_machine_seed_and_argv(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    write_manifest(folder, config(seed=7, target_accuracy=0.8), ["dynamix", "launch"])
    manifest = json.loads(folder.manifest_file.read_text())
    assert manifest["run"] == folder.path.name
    assert manifest["argv"] == ["dynamix", "launch"]
    assert manifest["seed"] == 7
    assert manifest["target_accuracy"] == 0.8
    assert set(manifest["versions"]) >= {"python", "dynamix-ps", "torch", "numpy", "byteps", "grpcio"}
    assert manifest["versions"]["numpy"]
    machine = manifest["machine"]
    assert machine["cores"] >= machine["usable_cores"] >= 1
    assert machine["memory_bytes"] > 1 << 20
    assert machine["host"] and machine["kernel"]
