"""Built wheels outside the repository. Every entry is complete; one process builds at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynamix_ps.byteps_build.source import file_sha256
from dynamix_ps.config import variables

_ENTRY = "entry.json"


class WheelCache:
    """One folder per key; each holds a wheel and `entry.json` with the wheel's name and hash."""

    def __init__(self, base: Path | None = None) -> None:
        self.folder = (base or Path(variables.cache_dir())) / "byteps"
        self.folder.mkdir(parents=True, exist_ok=True)

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

    def find(self, key: str) -> Path | None:
        """The wheel of `key`, or None. A damaged or half-written entry is removed."""
        folder = self.folder / key
        if not folder.exists():
            return None
        try:
            entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
            wheel = folder / str(entry["wheel"])
            if file_sha256(wheel) == entry["sha256"]:
                return wheel
        except (OSError, ValueError, KeyError, TypeError):
            pass  # incomplete: treated as damaged
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
            scratch.chmod(0o755)
            os.rename(scratch, self.folder / key)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return self.folder / key / wheel.name

    def remove(self, key: str) -> None:
        shutil.rmtree(self.folder / key, ignore_errors=True)
