"""From the source package to an installed BytePS. `dynamix build-byteps` calls `build_byteps`."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.byteps_build import source
from dynamix_ps.byteps_build.cache import WheelCache
from dynamix_ps.byteps_build.install import check_import, install, installed_info
from dynamix_ps.byteps_build.pip import pip
from dynamix_ps.byteps_build.progress import Progress
from dynamix_ps.byteps_build.recipe import Recipe
from dynamix_ps.byteps_build.toolchain import BUILD_BYTES, CACHE_BYTES, check_free_space
from dynamix_ps.byteps_build.wheels import join_wheels
from dynamix_ps.errors import BuildError

_SHOWN_LINES = 25


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a build: the wheel, whether it came from the cache, and whether it was installed now."""

    wheel: Path | None
    cached: bool
    installed: bool


def build_byteps(recipe: Recipe, progress: Progress, target: Path | None = None, rebuild: bool = False) -> Built:
    """Build the wheel of `recipe`, or take it from the cache, and install it.

    Args:
        target: folder to install into; None: the running environment.
        rebuild: build even if the cache has the wheel.

    Raises BuildError, with the next step, for every obstacle.
    """
    if not rebuild and target is None and installed_info().key == recipe.key:
        return Built(None, cached=True, installed=False)
    try:
        cache = WheelCache()
        with cache.locked(lambda: progress.note("another build is running, waiting for it ...")):
            wheel = None if rebuild else cache.find(recipe.key, progress.note)
            cached = wheel is not None
            if wheel is None:
                wheel = _build(recipe, cache, progress)
            with progress.phase("install"):
                install(wheel, target)
                for plugin in recipe.plugins:
                    check_import(plugin.name, target)
    except OSError as error:
        raise _explain(error) from error
    return Built(wheel, cached, installed=True)


def _build(recipe: Recipe, cache: WheelCache, progress: Progress) -> Path:
    check_free_space(Path(tempfile.gettempdir()), BUILD_BYTES)
    check_free_space(cache.folder, CACHE_BYTES)
    with progress.phase(f"fetch {source.FILE_NAME}"):
        archive = source.fetch(cache.sdist_folder)
    with tempfile.TemporaryDirectory(prefix="dynamix-byteps-") as scratch:
        folder = Path(scratch)
        home = folder / "home"
        recipe.make_home(home)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
        wheels: list[Path] = []
        for plugin in recipe.plugins:
            place = folder / plugin.name
            with progress.phase("unpack and edit"):
                tree = source.unpack(archive, place)
                recipe.prepare(tree)
            log = cache.logs_folder / f"build-{stamp}-{plugin.name}.log"
            what = f"{plugin.name} plugin" if wheels else f"server and {plugin.name} plugin"
            with progress.phase(f"compile {what} (log: {log})"):
                environment = recipe.environment(plugin, home, os.cpu_count() or 1)
                environment["TMPDIR"] = scratch  # pip and the compiler leave theirs where they are killed
                wheels.append(_compile(environment, tree, place / "wheel", log, progress))
        with progress.phase("store the wheel"):
            return cache.store(recipe.key, join_wheels(wheels, folder / "joined"))


def _compile(environment: dict[str, str], tree: Path, out: Path, log: Path, progress: Progress) -> Path:
    command = [*pip(), "wheel", "-v", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(out), str(tree)]
    tail: deque[str] = deque(maxlen=4000)
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                tail.append(line.rstrip())
                progress.line(line)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with make and the compilers
            raise
    wheels = sorted(out.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise _build_failed(process.returncode, list(tail), log)
    return wheels[0]


def _build_failed(returncode: int, lines: list[str], log: Path) -> BuildError:
    if any("No space left on device" in line for line in lines):
        return _explain(OSError(errno.ENOSPC, "No space left on device", str(log)))
    errors = [index for index, line in enumerate(lines) if "error:" in line or "Error " in line]
    start = max(0, errors[0] - 2) if errors else max(0, len(lines) - _SHOWN_LINES)
    shown = "\n".join(f"  | {line}" for line in lines[start : start + _SHOWN_LINES])
    return BuildError(
        f"the compilation of BytePS failed (exit code {returncode}); from its log {log}:\n{shown}\n"
        "Next: read the first error above; the log has the whole output. `dynamix doctor` checks the tools."
    )


def _explain(error: OSError) -> BuildError:
    where = error.filename or tempfile.gettempdir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(
            f"the disk is full: {error.strerror} ({where}). The unfinished build was deleted.\n"
            "Next: free some space, or point TMPDIR and DYNAMIX_CACHE to a larger disk."
        )
    return BuildError(
        f"{error.strerror or error} ({where}).\n"
        "Next: check the permissions, or point TMPDIR and DYNAMIX_CACHE elsewhere."
    )
