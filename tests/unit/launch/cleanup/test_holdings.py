"""What a later run believes of the record of an earlier one: only what this user alone can have written."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dynamix_ps.launch.cleanup import release as cleanup
from dynamix_ps.launch.cleanup.holdings import (
    Holdings,
    abandoned_holdings,
    make_scratch,
    new_scratch_path,
    new_shm_prefix,
    own_scratch_folders,
    read_record,
)
from dynamix_ps.launch.cleanup.release import is_group_of, release, release_stale
from dynamix_ps.launch.cleanup.shared_memory import remove_segments
from dynamix_ps.launch.emulation.cpu_quota import find_controller
from tests.launching import wait_for
from tests.other_user import NOBODY, as_another_user, needs_another_user

RUN_ID = f"{os.getpid():08x}"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder like /tmp, which is everybody's; with a short path, as sockets need it."""
    folder = Path(tempfile.mkdtemp(prefix="dx-test-"))
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def released() -> int:
    """How many runs of this test the next run releases; those of others, in /tmp, do not count."""
    return release_stale().count(RUN_ID)


def saved() -> Holdings:
    """The record of a run whose launcher is dead."""
    holdings, lock = living()
    os.close(lock)
    return holdings


def living(**changes: str) -> tuple[Holdings, int]:
    """The record of a run whose launcher lives, until the descriptor is closed."""
    scratch = make_scratch(new_scratch_path(RUN_ID), sockets=2)
    holdings = replace(Holdings(RUN_ID, new_shm_prefix(RUN_ID), str(scratch)), **changes)  # type: ignore[arg-type]
    return holdings, holdings.save()


def test_everything_of_a_run_is_for_its_user_alone_and_has_a_name_nobody_foresees(temporary: Path) -> None:
    holdings, other = saved(), saved()
    for path in (scratch := Path(holdings.scratch), *scratch.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert holdings.scratch != other.scratch
    assert holdings.shm_prefix != other.shm_prefix
    secret = holdings.shm_prefix.removeprefix(f"dynamix_{RUN_ID}_").strip("_")
    assert len(secret) == 16
    assert secret not in holdings.scratch  # which is listed in the temporary folder


def test_the_record_of_a_dead_run_is_believed_and_that_of_a_living_one_is_left(temporary: Path) -> None:
    dead, (alive, lock) = saved(), living()
    assert read_record(Path(dead.scratch)) == dead
    assert released() == 1
    assert [folder for folder in own_scratch_folders() if folder.parent == temporary] == [Path(alive.scratch)]
    release(alive)
    os.close(lock)


def test_programs_that_the_launcher_starts_do_not_keep_its_run_alive(temporary: Path) -> None:
    _, lock = living()
    with subprocess.Popen(["sleep", "300"], close_fds=False) as child:
        os.close(lock)
        assert released() == 1
        child.kill()


@needs_another_user
def test_a_run_in_another_pid_namespace_with_the_same_folders_is_left_alone_until_it_is_dead(temporary: Path) -> None:
    alive, lock = living()
    segment = Path("/dev/shm", f"{alive.shm_prefix}0_x")
    segment.touch(0o600)
    release_there = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _RELEASE]

    def released_there() -> str:
        environ = {**os.environ, "TMPDIR": str(temporary)}
        return subprocess.run(
            release_there, env=environ, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    try:
        assert released_there() == "[]"
        assert segment.exists()
        assert Path(alive.scratch, "w1").exists()
        os.close(lock)
        assert released_there() == f"['{RUN_ID}']"
        assert not segment.exists()
        assert not Path(alive.scratch).exists()
    finally:
        segment.unlink(missing_ok=True)


_RELEASE = f"""
from dynamix_ps.launch.cleanup.release import release_stale
print([run for run in release_stale() if run == '{RUN_ID}'])
"""


@pytest.mark.parametrize(
    ("machine", "boot_id", "expected"), [("another", "another", 0), (None, "before", 1), ("another", None, 1)]
)
def test_a_run_of_another_machine_is_left_alone_as_its_lock_may_not_show_here(
    temporary: Path, machine: str | None, boot_id: str | None, expected: int
) -> None:
    """This machine before it was started anew, and another container on it, are known by one of the two."""
    told = {name: value for name, value in (("machine", machine), ("boot_id", boot_id)) if value is not None}
    holdings, lock = living(**told)
    os.close(lock)
    assert released() == expected
    assert Path(holdings.scratch).exists() == (not expected)


def test_two_that_look_at_the_same_time_do_not_release_the_same_run(temporary: Path) -> None:
    saved()
    first = abandoned_holdings()
    assert next(found for found in first if found.run_id == RUN_ID)
    assert released() == 0
    first.close()
    assert released() == 1


def _link_to(record: Path, text: str) -> None:
    (record.parent.parent / "elsewhere.json").write_text(text)
    record.symlink_to(record.parent.parent / "elsewhere.json")


def _hard_link_to(record: Path, text: str) -> None:
    other = record.parent.parent / "elsewhere.json"
    other.write_text(text)
    other.chmod(0o600)
    os.link(other, record)


def _readable(record: Path, text: str) -> None:
    record.write_text(text)
    record.chmod(0o644)


def _pipe(record: Path, text: str) -> None:
    os.mkfifo(record, 0o600)


def _open_folder(record: Path, text: str) -> None:
    record.write_text(text)
    record.chmod(0o600)
    record.parent.chmod(0o777)


def _huge(record: Path, text: str) -> None:
    record.touch(0o600)
    record.write_text(" " * (1 << 20) + text)


@pytest.mark.parametrize("plant", [_link_to, _hard_link_to, _readable, _pipe, _open_folder, _huge])
def test_a_record_that_somebody_else_can_have_written_is_not_read(
    temporary: Path, plant: Callable[[Path, str], None]
) -> None:
    holdings = saved()
    record = Path(holdings.scratch) / "holdings.json"
    text = record.read_text()
    record.unlink()
    plant(record, text)
    assert read_record(Path(holdings.scratch)) is None
    assert released() == 0
    assert Path(holdings.scratch).exists()


def test_a_record_in_a_folder_behind_a_link_is_not_read(temporary: Path) -> None:
    holdings = saved()
    Path(holdings.scratch).rename(temporary / "moved")
    Path(holdings.scratch).symlink_to(temporary / "moved")
    assert released() == 0


def test_a_record_that_names_another_folder_is_not_believed(temporary: Path) -> None:
    holdings = saved()
    Path(holdings.scratch).rename(temporary / "dynamix-renamed")
    assert released() == 0
    assert (temporary / "dynamix-renamed").exists()


@needs_another_user
def test_another_user_cannot_make_root_kill_or_remove_anything(temporary: Path) -> None:
    """He plants a record in a folder of his, with a link to a file of root's, and a false control group."""
    victim = subprocess.Popen(["sleep", "300"])
    false_group = temporary / f"dynamix-{RUN_ID}-w0"
    scratch = temporary / f"dynamix-{RUN_ID}-0123456789abcdef"
    text = Holdings(RUN_ID, f"dynamix_{RUN_ID}_", str(scratch), (str(false_group),)).to_json()
    (temporary / "of_root.json").write_text(text)  # such as a file of root whose content he could influence

    def plant() -> None:
        false_group.mkdir()
        (false_group / "cgroup.procs").write_text(f"{victim.pid}\n")
        scratch.mkdir(mode=0o700)
        (scratch / "holdings.json").symlink_to(temporary / "of_root.json")

    try:
        as_another_user(plant)
        assert released() == 0
        (scratch / "holdings.json").unlink()
        (scratch / "holdings.json").write_text(text)  # even a record of root in his folder
        (scratch / "holdings.json").chmod(0o600)
        assert released() == 0
        assert victim.poll() is None
        assert scratch.stat().st_uid == NOBODY.pw_uid
    finally:
        victim.kill()
        victim.wait()


@needs_another_user
def test_another_user_can_neither_enter_the_scratch_folder_nor_take_its_place(temporary: Path) -> None:
    holdings = saved()
    taken = new_scratch_path(RUN_ID)

    def attack() -> None:
        for forbidden in (
            lambda: list(Path(holdings.scratch).iterdir()),
            (Path(holdings.scratch) / "holdings.json").read_text,
            lambda: Path(holdings.scratch).rename(temporary / "mine"),
        ):
            with pytest.raises(PermissionError):
                forbidden()
        taken.mkdir(mode=0o777)

    as_another_user(attack)
    with pytest.raises(FileExistsError):
        make_scratch(taken, sockets=1)


def test_control_groups_are_removed_only_below_a_mount_of_control_groups(temporary: Path) -> None:
    assert not is_group_of(temporary / f"dynamix-{RUN_ID}-w0", RUN_ID)
    if (controller := find_controller()).usable:
        name = f"dynamix-{RUN_ID}-w0"
        assert is_group_of(controller.parent / name, RUN_ID)
        assert not is_group_of(controller.parent / name, "0badcafe")
        assert not is_group_of(controller.parent / f"{name}/../../..{temporary}/{name}", RUN_ID)
        assert not is_group_of(controller.parent, RUN_ID)
        assert not is_group_of(controller.parent / name / "x", RUN_ID)


def test_what_a_dead_run_holds_is_released(temporary: Path) -> None:
    holdings = saved()
    segment = Path("/dev/shm", f"{holdings.shm_prefix}0_x")
    segment.touch(0o600)
    sleeper = subprocess.Popen(["sleep", "300"], env={**os.environ, "DYNAMIX_RUN_ID": RUN_ID})
    try:
        assert released() == 1
        assert sleeper.wait(10) < 0
        assert not segment.exists()
        assert not Path(holdings.scratch).exists()
    finally:
        sleeper.kill()
        sleeper.wait()
        segment.unlink(missing_ok=True)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_number_that_another_process_has_taken_meanwhile_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    cleanup._signal(sleeper.pid, cleanup.signal.SIGKILL, lambda: False)
    assert sleeper.poll() is None
    cleanup._signal(sleeper.pid, cleanup.signal.SIGKILL, lambda: True)
    assert sleeper.wait(10) < 0
    cleanup._signal(sleeper.pid, cleanup.signal.SIGKILL, lambda: True)  # it is gone: nothing happens


def test_no_user_reads_names_of_shared_memory_in_the_arguments_of_the_reaper(temporary: Path) -> None:
    from dynamix_ps.launch.cleanup.reaper import start_reaper

    scratch = make_scratch(new_scratch_path(RUN_ID), sockets=0)
    holdings = Holdings(RUN_ID, new_shm_prefix(RUN_ID), str(scratch))
    arguments = subprocess.run(
        [sys.executable, "-c", _START_AND_LIST, holdings.to_json()], capture_output=True, text=True, check=True
    ).stdout
    assert "dynamix_ps.launch.cleanup.reaper" in arguments
    assert holdings.shm_prefix not in arguments
    wait_for(lambda: not scratch.exists(), "the reaper to clean up after its owner")
    os.close(start_reaper(Holdings(RUN_ID, holdings.shm_prefix, str(make_scratch(scratch, sockets=0)))))
    wait_for(lambda: not scratch.exists(), "the reaper to clean up")
    assert remove_segments(holdings.shm_prefix) == []


_START_AND_LIST = """
import pathlib, sys
from dynamix_ps.launch.cleanup.holdings import Holdings
from dynamix_ps.launch.cleanup.reaper import start_reaper
holdings = Holdings.from_json(sys.argv.pop())
start_reaper(holdings)
for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        text = file.read_text()
    except OSError:
        continue
    is_reaper = "launch.cleanup.reaper" in text and holdings.run_id in text
    if is_reaper and "START" not in text and "-c" not in text.split("\\0"):
        print(text)
"""
