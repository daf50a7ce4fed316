"""Built wheels outside the repository. Every entry is complete; one process builds at a time.

What is installed from here runs as this user. So nobody else may write into the folder, and a wheel is used only if it
is the one that was built: of this user, with the sha256 that was recorded then.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynamix_ps.byteps_build.source import file_sha256
from dynamix_ps.config import variables
from dynamix_ps.errors import BuildError

_ENTRY = "entry.json"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class WheelCache:
    """One folder per key; each holds a wheel and `entry.json` with the wheel's name and hash."""

    def __init__(self, base: Path | None = None) -> None:
        """Raises BuildError if the folder belongs to another user, OSError if it cannot be made."""
        self.folder = (base or Path(variables.cache_dir())) / "byteps"
        self.folder.mkdir(parents=True, exist_ok=True)
        owner = self.folder.stat().st_uid
        if owner != os.getuid():
            raise BuildError(
                f"the cache {self.folder} belongs to the user with id {owner}, not to you ({os.getuid()}): "
                "what that user puts there would run as you.\n"
                f"Next: point {variables.CACHE} to a folder of your own."
            )
        self.folder.chmod(stat.S_IMODE(self.folder.stat().st_mode) & ~_OTHERS_WRITE)

    @property
    def sdist_folder(self) -> Path:
        return self.folder / "sdist"

    @property
    def logs_folder(self) -> Path:
        folder = self.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Lock the cache for this process; `on_wait` is called once if another process holds the lock."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def find(self, key: str, on_refused: Callable[[str], None]) -> Path | None:
        """The wheel of `key`, or None. An entry that is not what was built is removed; `on_refused` gets the reason."""
        folder = self.folder / key
        if not os.path.lexists(folder):
            return None
        try:
            return _verified(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            on_refused(f"the wheel in {folder} is not the one that was built: {error}; building it again")
        self.remove(key)
        return None

    def store(self, key: str, wheel: Path) -> Path:
        """Store a wheel: write it under a temporary name, then rename it."""
        self.remove(key)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            shutil.copyfile(wheel, scratch / wheel.name)
            entry = {"wheel": wheel.name, "sha256": file_sha256(scratch / wheel.name)}
            (scratch / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")
            for file in scratch.iterdir():
                file.chmod(0o600)
            os.rename(scratch, self.folder / key)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return self.folder / key / wheel.name

    def remove(self, key: str) -> None:
        folder = self.folder / key
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _verified(folder: Path) -> Path:
    """The wheel in an entry. Raises OSError, ValueError, KeyError or TypeError if it is not what was built."""
    _check_own(folder, stat.S_ISDIR)
    _check_own(folder / _ENTRY, stat.S_ISREG)
    entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
    wheel = folder / Path(entry["wheel"]).name
    _check_own(wheel, stat.S_ISREG)
    if (got := file_sha256(wheel)) != entry["sha256"]:
        raise ValueError(f"got sha256 {got}, recorded when it was built: {entry['sha256']}")
    return wheel


def _check_own(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raises PermissionError unless `path` is no link, belongs to this user, and others cannot write it."""
    found = path.lstat()
    if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        shown = stat.filemode(found.st_mode)
        raise PermissionError(f"{path.name} is {shown} of user {found.st_uid}, which others may have changed")
