"""Building BytePS: the cache key, the cache, and the message for every obstacle."""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from dynamix_ps.byteps_build import build, cpu_level, install, recipe, source, toolchain
from dynamix_ps.byteps_build.cache import WheelCache
from dynamix_ps.byteps_build.cuda import find_cuda
from dynamix_ps.byteps_build.edits import Edit, apply_edits, for_variant
from dynamix_ps.byteps_build.progress import Progress
from dynamix_ps.byteps_build.recipe import Recipe
from dynamix_ps.byteps_build.toolchain import Toolchain
from dynamix_ps.byteps_build.wheels import join_wheels
from dynamix_ps.errors import BuildError
from tests.launching import begun, command_line, ends, environment, wait_for
from tests.other_user import NOBODY, needs_another_user

TOOLS = Toolchain(python="cpython-311-x86_64", torch="2.13.0", mxnet="1.9.1", compiler="g++ 12", cpu="some cpu")
BOTH = (recipe.TORCH, recipe.MXNET)
OURS = Recipe("ours", TOOLS)
FOR_OTHERS = Recipe("ours", TOOLS, for_other_hosts=True)


@pytest.fixture
def cache(tmp_path: Path) -> WheelCache:
    return WheelCache(tmp_path / "cache")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "byteps-1-py3-none-any.whl"
    path.write_bytes(b"a wheel" * 100)
    return path


# -- the key ------------------------------------------------------------------------------------------------------


def test_same_parts_give_the_same_key() -> None:
    assert OURS.key == Recipe("ours", TOOLS).key


@pytest.mark.parametrize("field", ["python", "torch", "mxnet", "compiler", "cpu"])
def test_key_depends_on_the_tools(field: str) -> None:
    assert Recipe("ours", dataclasses.replace(TOOLS, **{field: "other"})).key != OURS.key


def test_key_depends_on_variant_plugins_cuda_and_the_hosts_it_is_for() -> None:
    others = [Recipe("stock", TOOLS), Recipe("ours", TOOLS, BOTH), Recipe("ours", TOOLS, cuda_home="/cuda")]
    others.append(FOR_OTHERS)
    assert len({OURS.key, *(other.key for other in others)}) == 5


def test_key_depends_on_the_edits_and_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    before = OURS.key
    edits = for_variant("ours")
    monkeypatch.setattr(recipe, "for_variant", lambda _: (*edits[:-1], dataclasses.replace(edits[-1], new="other")))
    edited = OURS.key
    monkeypatch.setattr(recipe, "for_variant", for_variant)
    monkeypatch.setattr(source, "SHA256", "0" * 64)
    assert len({before, edited, OURS.key}) == 3


def test_each_plugin_is_built_alone_and_mxnets_with_the_old_abi(tmp_path: Path) -> None:
    for plugin, other, abi in ((*BOTH, False), (*BOTH[::-1], True)):
        env = OURS.environment(plugin, tmp_path, jobs=2)
        switches = {"torch": "PYTORCH", "mxnet": "MXNET"}
        assert env[f"BYTEPS_WITH_{switches[plugin.name]}"] == env[f"BYTEPS_WITHOUT_{switches[other.name]}"] == "1"
        assert ("-D_GLIBCXX_USE_CXX11_ABI=0" in env["CXXFLAGS"]) == ("ADD_CFLAGS" in env) == abi


def test_one_wheel_has_the_files_of_both_builds(tmp_path: Path) -> None:
    wheels = []
    for name, files in (("one", {"p/both.txt": "one", "p/a.so": "a"}), ("two", {"p/both.txt": "two", "p/b.so": "b"})):
        wheels.append(tmp_path / name / "p-1-py3-none-any.whl")
        wheels[-1].parent.mkdir()
        about = {
            "p-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: p\nVersion: 1\n",
            "p-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = [f"{file},sha256={_digest(text)},{len(text)}" for file, text in (files | about).items()]
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            for file, text in (files | about | {"p-1.dist-info/RECORD": "\n".join(rows) + "\n"}).items():
                archive.writestr(file, text)
    joined = join_wheels(wheels, tmp_path / "joined")
    with zipfile.ZipFile(joined) as archive:
        assert archive.read("p/both.txt") == b"one"
        assert (archive.read("p/a.so"), archive.read("p/b.so")) == (b"a", b"b")
        assert b"p/b.so,sha256=" in archive.read("p-1.dist-info/RECORD")
    assert join_wheels(wheels[:1], tmp_path / "alone") == wheels[0]
    wheels[1].write_bytes(b"torn")
    with pytest.raises(BuildError, match="python -m wheel unpack"):
        join_wheels(wheels, tmp_path / "again")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def test_marker_tells_what_was_built() -> None:
    assert Recipe("ours", TOOLS, BOTH).marker()["plugins"] == ["torch", "mxnet"]
    marker = json.loads(json.dumps(OURS.marker()))
    assert (marker["key"], marker["variant"], marker["plugins"]) == (OURS.key, "ours", ["torch"])
    assert len(marker["edits"]) > 10


# -- the edits ----------------------------------------------------------------------------------------------------


def test_edit_replaces_what_occurs_once(tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text("one two three")
    apply_edits(tmp_path, [Edit("a.cc", "two", "2", "why", "test"), Edit("b.cc", "", "new", "why", "test")])
    assert ((tmp_path / "a.cc").read_text(), (tmp_path / "b.cc").read_text()) == ("one 2 three", "new")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit("a.cc", "four", "4", "a good reason", "test"), "occurs 0 times"),
        (Edit("a.cc", "two", "2", "a good reason", "test"), "occurs 2 times"),
        (Edit("gone.cc", "two", "2", "a good reason", "test"), "no such file"),
        (Edit("a.cc", "", "new file", "a good reason", "test"), "exists already"),
    ],
)
def test_edit_that_does_not_fit_is_named(tmp_path: Path, edit: Edit, reason: str) -> None:
    (tmp_path / "a.cc").write_text("two two")
    with pytest.raises(BuildError) as caught:
        apply_edits(tmp_path, [edit])
    assert edit.file in str(caught.value) and "a good reason" in str(caught.value) and reason in str(caught.value)


def test_every_edit_says_why_and_who_needs_it() -> None:
    for edit in for_variant("ours"):
        assert edit.why and edit.needed_by and edit.old != edit.new


def lines_of_ours(edit: Edit) -> int:
    """How many lines of the new text are not in the old one."""
    return (Counter(edit.new.splitlines()) - Counter(edit.old.splitlines())).total()


def test_our_code_stands_in_files_of_its_own() -> None:
    files = {path.read_text() for path in (recipe.HERE / "sources").iterdir() if path.is_file()}
    for edit in for_variant("ours"):
        if edit.old:
            assert lines_of_ours(edit) <= 10, f"a file in sources/ is the place for it: {edit.file}: {edit.new}"
        else:
            assert edit.new in files, f"{edit.file} is no copy of a file in sources/"


def test_lines_of_ours_do_not_count_what_an_edit_keeps() -> None:
    assert lines_of_ours(Edit("a.cc", "a\nb\n", "a\nc\nb\nb\n", "why", "test")) == 2


def test_variants_share_what_is_needed_to_build() -> None:
    assert set(for_variant("stock")) < set(for_variant("ours"))


# -- the source package -------------------------------------------------------------------------------------------


def test_package_with_another_hash_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(folder: Path) -> Path:
        path = folder / source.FILE_NAME
        path.write_bytes(b"something else")
        return path

    monkeypatch.setattr(source, "_download", deliver)
    with pytest.raises(BuildError, match=f"expected {source.SHA256}"):
        source.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_download_in_the_cache_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / source.FILE_NAME).write_bytes(b"half of i")
    whole = b"the whole of it"

    def deliver(folder: Path) -> Path:
        path = folder / source.FILE_NAME
        path.write_bytes(whole)
        return path

    monkeypatch.setattr(source, "_download", deliver)
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(whole).hexdigest())
    assert source.fetch(tmp_path).read_bytes() == whole


def test_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BuildError, match="could not download") as caught:
        source.fetch(tmp_path)
    assert "Next: check the network" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_truncated_archive(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(os.urandom(200_000))
    archive = tmp_path / source.FILE_NAME
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(content)
    archive.write_bytes(archive.read_bytes()[:100_000])
    with pytest.raises(BuildError, match="is damaged"):
        source.unpack(archive, tmp_path / "out")


def test_unpacking_stays_in_the_folder(tmp_path: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no extraction filters")
    archive = tmp_path / source.FILE_NAME
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(BuildError, match="is damaged"):
        source.unpack(archive, tmp_path / "out")
    assert not (tmp_path / "outside").exists()


def test_unpacking_with_a_python_without_extraction_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract = tarfile.TarFile.extractall

    def without_filter(tar: tarfile.TarFile, path: Path) -> None:
        extract(tar, path)

    monkeypatch.setattr(tarfile.TarFile, "extractall", without_filter)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = tmp_path / source.FILE_NAME
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(f"byteps-{source.VERSION}"))
    assert source.unpack(archive, tmp_path / "out").exists()


# -- the machine --------------------------------------------------------------------------------------------------


def test_all_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain, "installed_version", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/none")
    monkeypatch.setattr("os.path.exists", lambda path: False)
    with pytest.raises(BuildError) as caught:
        toolchain.check()
    told = dict(re.findall(r"^  (.+) is missing; (?:apt-get|.* pip) install (\S+)", str(caught.value), re.MULTILINE))
    packages = {"setuptools": "setuptools", "wheel": "wheel", "torch": "torch"}
    packages |= {"g++": "g++", "make": "make", "ar": "binutils", "numa.h": "libnuma-dev", "Python.h": "python3-dev"}
    assert told == packages


def test_no_libnuma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n! grep -q numa.h\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match=r"numa\.h is missing; apt-get install libnuma-dev"):
        toolchain.check()


def test_this_machine_is_described() -> None:
    found = toolchain.check()
    assert all(found.describe().values()) and found == toolchain.check()


def test_too_little_space(tmp_path: Path) -> None:
    toolchain.check_free_space(tmp_path, 1)
    with pytest.raises(BuildError, match="not enough space"):
        toolchain.check_free_space(tmp_path, 10**18)


def test_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=r"--cuda needs cuda_runtime\.h(.|\n)*or build without --cuda"):
        find_cuda()


def test_headers_that_cuda_13_keeps_for_nvcc_are_found(tmp_path: Path) -> None:
    cuda, nccl = tmp_path / "cuda", tmp_path / "nccl"
    for file in (
        cuda / "include" / "cccl" / "nv" / "target",
        nccl / "include" / "nccl.h",
        nccl / "lib" / "libnccl.so.2",
    ):
        file.parent.mkdir(parents=True)
        file.touch()
    Recipe("ours", TOOLS, cuda_home=str(cuda), nccl_home=str(nccl)).make_home(tmp_path / "home")
    found = tmp_path / "home" / "include"
    assert (found / "nv" / "target").is_file() and (found / "nccl.h").is_file()
    assert (tmp_path / "home" / "lib" / "libnccl.so").exists()


# -- wheels for other hosts ---------------------------------------------------------------------------------------

OLD_CPU = r"""
import builtins, io
there = builtins.open
def opened(file, *how, **more):
    return io.StringIO("flags\t: avx f16c\n") if file == "/proc/cpuinfo" else there(file, *how, **more)
builtins.open = opened
"""


def test_a_wheel_for_other_hosts_refuses_a_cpu_before_it_loads_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "for_variant", lambda _: ())
    (tmp_path / "setup.py").write_text("['-Ofast', '-march=native']")
    for package in ("byteps", "byteps/torch", "byteps/mxnet"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("print('loaded')" if package == "byteps/torch" else "")
    FOR_OTHERS.prepare(tmp_path)
    assert (tmp_path / "setup.py").read_text() == "['-Ofast', '-march=x86-64-v3']"
    command = [sys.executable, "-S", "-c"]
    old = subprocess.run(
        [*command, f"{OLD_CPU}import byteps.torch"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert old.returncode == 1 and old.stdout == ""
    last = old.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: this BytePS is built for x86-64-v3, and the CPU of this host lacks abm, avx2, bmi1,"
    )
    assert last.endswith("build it on this host: dynamix build-byteps")
    if not cpu_level.missing_flags():
        subprocess.run([*command, "import byteps.torch"], cwd=tmp_path, check=True)


def test_a_cpu_of_another_architecture_lacks_all(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert {"avx2", "fma", "bmi2"} < set(cpu_level.missing_flags(str(tmp_path / "cpuinfo")))


# -- the cache ----------------------------------------------------------------------------------------------------


def refused(cache: WheelCache) -> list[str]:
    """Why the entry is not used; it is gone then."""
    said: list[str] = []
    assert cache.find("key", said.append) is None
    assert not os.path.lexists(cache.folder / "key")
    return said


def test_stored_wheel_is_found_again(cache: WheelCache, wheel: Path) -> None:
    assert refused(cache) == []
    stored = cache.store("key", wheel)
    found = cache.find("key", pytest.fail)
    assert found == stored and found.read_bytes() == wheel.read_bytes()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (stored.parent, stored)] == [0o700, 0o600]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda entry, stored: entry.unlink(), "No such file"),
        (lambda entry, stored: stored.write_bytes(stored.read_bytes()[:-1]), "got sha256 .* recorded when it was"),
        (lambda entry, stored: stored.unlink(), "No such file"),
        (lambda entry, stored: entry.write_text('{"wheel": '), "Expecting value"),
        (lambda entry, stored: stored.chmod(0o666), "-rw-rw-rw- of user"),
        (lambda entry, stored: stored.parent.chmod(0o777), "drwxrwxrwx of user"),
        (lambda entry, stored: (stored.rename(moved := stored.parents[2] / "w"), stored.symlink_to(moved)), "lrwx"),
    ],
)
def test_an_entry_that_is_not_what_was_built_is_never_used(
    cache: WheelCache, wheel: Path, damage: Callable[[Path, Path], object], said: str
) -> None:
    stored = cache.store("key", wheel)
    damage(stored.parent / "entry.json", stored)
    (line,) = refused(cache)
    assert re.search(rf"not the one that was built: .*{said}.*; building it again", line), line


def test_an_entry_behind_a_link_is_never_used(cache: WheelCache, wheel: Path, tmp_path: Path) -> None:
    cache.store("key", wheel).parent.rename(tmp_path / "elsewhere")
    (cache.folder / "key").symlink_to(tmp_path / "elsewhere")
    assert len(refused(cache)) == 1
    assert (tmp_path / "elsewhere" / wheel.name).exists()


@needs_another_user
def test_what_belongs_to_another_user_is_not_used(cache: WheelCache, wheel: Path) -> None:
    stored = cache.store("key", wheel)
    os.chown(stored, NOBODY.pw_uid, NOBODY.pw_gid)
    (line,) = refused(cache)
    assert f"of user {NOBODY.pw_uid}" in line
    os.chown(cache.folder, NOBODY.pw_uid, NOBODY.pw_gid)
    with pytest.raises(BuildError, match=rf"belongs to the user with id {NOBODY.pw_uid}(.|\n)*DYNAMIX_CACHE"):
        WheelCache(cache.folder.parent)


def test_others_may_not_write_into_the_cache(cache: WheelCache) -> None:
    cache.folder.chmod(0o777)
    WheelCache(cache.folder.parent)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o755


def test_full_disk_leaves_nothing_behind(cache: WheelCache, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        cache.store("key", wheel)
    assert refused(cache) == []
    assert list(cache.folder.iterdir()) == []


def test_one_build_at_a_time(cache: WheelCache) -> None:
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        with cache.locked(waiting.set):
            entered.set()

    with cache.locked(lambda: pytest.fail("nobody else is there")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(20)
        assert not entered.is_set()
    assert entered.wait(20)
    thread.join()


# -- the build ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    monkeypatch.setenv("DYNAMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "check_import", lambda *_: None)
    return Progress(Console(quiet=True))


def test_disk_full_while_building(quiet: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_archive: Path, _folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/somewhere")

    monkeypatch.setattr(source, "fetch", lambda folder: folder)
    monkeypatch.setattr(source, "unpack", full)
    with pytest.raises(BuildError, match=r"the disk is full.*/tmp/somewhere(.|\n)*DYNAMIX_CACHE"):
        build.build_byteps(OURS, quiet, target=tmp_path / "target")


def test_second_build_comes_from_the_cache(
    quiet: Progress, tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[str] = []
    installed: list[bytes] = []

    def compile_it(recipe: Recipe, cache: WheelCache, _progress: Progress) -> Path:
        builds.append(recipe.key)
        return cache.store(recipe.key, wheel)

    monkeypatch.setattr(build, "_build", compile_it)
    monkeypatch.setattr(build, "install", lambda path, _target: installed.append(path.read_bytes()))
    first = build.build_byteps(OURS, quiet, target=tmp_path)
    second = build.build_byteps(OURS, quiet, target=tmp_path)
    third = build.build_byteps(OURS, quiet, target=tmp_path, rebuild=True)
    assert [first.cached, second.cached, third.cached] == [False, True, False]
    assert builds == [OURS.key] * 2 and installed == [wheel.read_bytes()] * 3


BUILD = """
import os, sys
from dynamix_ps.byteps_build import source
from dynamix_ps.byteps_build.recipe import Recipe
from dynamix_ps.cli.main import main

def unpack(archive, folder):
    folder.mkdir()
    (folder / "setup.py").write_text(os.environ["SETUP"])
    return folder

source.fetch, source.unpack, Recipe.prepare = lambda folder: folder, unpack, lambda self, tree: None
sys.argv[1:] = ["build-byteps", "--rebuild"]
sys.exit(main())
"""
WAITS = "import os, time; open('{0}.new', 'w').write(str(os.getpid())); os.rename('{0}.new', '{0}'); time.sleep(600)"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(None, 3), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_build_that_is_ended_leaves_no_folder_and_no_process(
    number: signal.Signals | None, code: int, tmp_path: Path
) -> None:
    """None: it fails."""
    temporary, started = tmp_path / "temporary", tmp_path / "pid"
    temporary.mkdir()
    setup = WAITS.format(started) if number else "raise SystemExit(1)"
    changes = {"TMPDIR": str(temporary), "DYNAMIX_CACHE": str(tmp_path / "cache"), "SETUP": setup}
    process = begun([sys.executable, "-c", BUILD], tmp_path, environment(**changes))
    try:
        if number:
            wait_for(started.is_file, "the build to begin")
            process.send_signal(number)
        output = ends(process, code)
    finally:
        process.kill()
    assert "compile server and torch plugin" in output and " ... not done\n" in output
    assert list(temporary.iterdir()) == []
    if number:
        wait_for(lambda: not command_line(started.read_text()), "the compiler to end")


def test_without_a_terminal_a_step_is_one_line_with_its_time() -> None:
    told = io.StringIO()
    with Progress(Console(file=told)).phase("compile it"):
        assert told.getvalue() == "compile it ... ", "shown when it begins"
    assert re.fullmatch(r"compile it \.\.\. \d+\.\d s\n", told.getvalue())


def test_failed_compilation_shows_its_first_error() -> None:
    lines = [f"g++ -c file{i}.cc" for i in range(100)]
    lines[40] = "file40.cc:7:1: error: expected ';' before '}'"
    text = str(build._build_failed(1, lines, Path("/some/build.log")))
    assert lines[40] in text and "/some/build.log" in text and "file99" not in text


def test_compilation_that_filled_the_disk_says_so() -> None:
    lines = ["as: BFD error: out.o: No space left on device", "error: command failed"]
    assert "the disk is full" in str(build._build_failed(1, lines, Path("/some/build.log")))


def test_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "byteps"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "torch" / "c_lib.so").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    plain = install.installed_info()
    assert plain.plugins == ("torch",) and not plain.ours and not plain.key
    (package / recipe.MARKER).write_text(json.dumps(OURS.marker()))
    ours = install.installed_info()
    assert ours.ours and ours.current and ours.key == OURS.key and not ours.cuda
    (package / recipe.MARKER).write_text(json.dumps({**OURS.marker(), "sources": "of another version"}))
    assert not install.installed_info().current
