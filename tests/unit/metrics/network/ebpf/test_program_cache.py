"""Compiled programs are kept, and only what this user alone can have written is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamix_ps.config import variables
from dynamix_ps.metrics.network.ebpf import btf, compiler, program_cache
from dynamix_ps.metrics.network.ebpf.program import MapLayout, Program
from dynamix_ps.metrics.network.ebpf.program_cache import kernel_program


class Compiler:
    """Counts what it compiles."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, types: object, flags: list[str]) -> Program:
        self.compiled += 1
        return Program({"some": MapLayout(1, 4, 8, 100, 0)}, {"f": b"code"}, {"happened": ("f",)}, counts_busy=False)


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setenv(variables.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "compile_program", made)
    monkeypatch.setattr(btf, "kernel_types", lambda: b"types")
    monkeypatch.setattr(btf, "Btf", lambda types: types)
    return made


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "probe").iterdir())


def test_the_second_time_nothing_is_compiled(compiling: Compiler) -> None:
    assert kernel_program(["-DA=1"]) == kernel_program(["-DA=1"])
    assert compiling.compiled == 1


def test_nobody_else_can_write_what_is_kept(compiling: Compiler, tmp_path: Path) -> None:
    kernel_program([])
    (file,) = kept(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600


def other_kernel(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(btf, "kernel_types", lambda: b"other types")


def other_source(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    file = folder / "program.c"
    file.write_text("int f(void);")
    monkeypatch.setattr(compiler, "SOURCE", file)


def other_namespace(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(compiler, "machine_flags", lambda: ["-DPID_NAMESPACE_INODE=1ULL"])


@pytest.mark.parametrize("change", [other_kernel, other_source, other_namespace])
def test_what_would_be_another_program_is_compiled(
    compiling: Compiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    kernel_program([])
    change(monkeypatch, tmp_path)
    kernel_program([])
    assert compiling.compiled == 2


def test_other_flags_are_another_program(compiling: Compiler) -> None:
    for flags in (["-DA=1", "-DB=2"], ["-DA=1-DB=2"], ["-DB=2", "-DA=1"]):
        kernel_program(flags)
    assert compiling.compiled == 3


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def change_a_byte(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"happened", b"happenee"))


def let_others_write(file: Path) -> None:
    file.chmod(0o666)


def put_a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def put_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def give_away(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(file, 65534, -1)


@pytest.mark.parametrize(
    "spoil", [shorten, change_a_byte, let_others_write, put_a_link, put_a_pipe, give_away, Path.unlink]
)
def test_what_is_not_whole_or_may_be_of_others_is_compiled_anew(
    compiling: Compiler, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    kernel_program([])
    spoil(kept(tmp_path)[0])
    kernel_program([])
    assert compiling.compiled == 2
    kernel_program([])
    assert compiling.compiled == 2


def test_another_program_under_its_name_is_not_taken(compiling: Compiler, tmp_path: Path) -> None:
    kernel_program(["-DA=1"])
    (first,) = kept(tmp_path)
    kernel_program(["-DA=2"])
    (second,) = (file for file in kept(tmp_path) if file != first)
    os.replace(first, second)
    kernel_program(["-DA=2"])
    assert compiling.compiled == 3


def test_a_folder_that_cannot_be_written_is_no_hindrance(
    compiling: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(variables.CACHE, str(tmp_path / "file"))
    kernel_program([])
    kernel_program([])
    assert compiling.compiled == 2


def test_the_oldest_go(compiling: Compiler, tmp_path: Path) -> None:
    for number in range(program_cache._KEPT + 3):
        kernel_program([f"-DA={number}"])
        for file in kept(tmp_path):
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 10))
    assert len(kept(tmp_path)) == program_cache._KEPT
    kernel_program(["-DA=3"])
    assert compiling.compiled == program_cache._KEPT + 3  # still there
    kernel_program(["-DA=2"])
    assert compiling.compiled == program_cache._KEPT + 4
