"""Sends the files of an agent's run folder to the launcher's run folder while they grow."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dynamix_ps.launch.messages.agent_messages import MAX_DATA_BYTES, FilePart

GROWS = -1
# The sub-folders of a run folder in which roles write, and how: a file of JSON lines grows, others are written anew.
FOLDERS = ("workers", "roles", "arbitrator", "checkpoints", "logs")
_GROWING = (".jsonl", ".log")
_SMALL_BYTES = 64  # so small a file is read again even if its size is the same, as the mark of an iteration


@dataclass(slots=True)
class _Sent:
    """How far a file has been sent. `content`: the content of a small file."""

    inode: int = 0
    modified_ns: int = 0
    size: int = 0
    content: bytes = b""


class FolderSender:
    """Finds what is new in a run folder and sends it.

    Leaves out hidden files: they are temporary, and a finished file is renamed.
    """

    def __init__(self, folder: Path, send: Callable[[FilePart], None], has_room: Callable[[], bool]) -> None:
        self._folder, self._send, self._has_room = folder, send, has_room
        self._sent: dict[str, _Sent] = {}
        self._whole: Iterator[FilePart] | None = None  # a replaced file that is on its way

    def send_news(self) -> bool:
        """Send what is new, as far as the link has room. Returns whether all was sent."""
        if not self._send_whole():
            return False
        for path in self._files():
            if not self._has_room():
                return False
            name = path.relative_to(self._folder).as_posix()
            sent = self._sent.setdefault(name, _Sent())
            try:
                done = self._growth(path, name, sent) if path.suffix in _GROWING else self._change(path, name, sent)
            except OSError:
                continue  # gone since the folder was read
            if not done:
                return False
        return True

    def _files(self) -> Iterator[Path]:
        for part in FOLDERS:
            try:
                entries = sorted(os.scandir(self._folder / part), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)

    def _growth(self, path: Path, name: str, sent: _Sent) -> bool:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(sent.size)
            while sent.size < size:
                if not self._has_room():
                    return False
                data = file.read(MAX_DATA_BYTES)
                if not data:
                    break
                self._send(FilePart(name, sent.size, GROWS, data))
                sent.size += len(data)
        return True

    def _change(self, path: Path, name: str, sent: _Sent) -> bool:
        found = path.stat()
        content = path.read_bytes() if found.st_size <= _SMALL_BYTES else b""
        seen = _Sent(found.st_ino, found.st_mtime_ns, found.st_size, content)
        if (seen.inode, seen.size, seen.content) == (sent.inode, sent.size, sent.content) and (
            content or seen.modified_ns == sent.modified_ns
        ):
            return True
        self._sent[name] = seen
        self._whole = _parts(path, name)
        return self._send_whole()

    def _send_whole(self) -> bool:
        """Send more of a replaced file. The file stays open, so that its parts are of one version."""
        while self._whole is not None:
            if not self._has_room():
                return False
            part = next(self._whole, None)
            if part is None:
                self._whole = None
            else:
                self._send(part)
        return True


def _parts(path: Path, name: str) -> Iterator[FilePart]:
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            offset = 0
            while data := file.read(min(MAX_DATA_BYTES, total - offset)):
                yield FilePart(name, offset, total, data)
                offset += len(data)
            if total == 0:
                yield FilePart(name, 0, 0, b"")
    except OSError:
        return


def parts_of(path: Path, name: str) -> Iterator[FilePart]:
    """A whole file as messages. Raises OSError if it cannot be read."""
    path.open("rb").close()
    return _parts(path, name)


class FolderReceiver:
    """Writes the files of one sender into a run folder, and nothing outside of FOLDERS.

    A growing file continues after the part that an earlier sender left, whose host was lost.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begins: dict[Path, int] = {}  # sizes of files that grow, before this sender
        self._unfinished: set[Path] = set()

    def take(self, part: FilePart) -> None:
        """Write a part. Raises OSError if that fails, ValueError for a path that an agent may not write."""
        target = self._folder / checked_path(part.path)
        target.parent.mkdir(exist_ok=True)
        if part.total_bytes == GROWS:
            begin = self._begins.setdefault(target, target.stat().st_size if target.exists() else 0)
            _write(target, begin + part.offset, part.data)
            return
        arriving = target.with_name(f".{target.name}.arriving")
        if part.offset == 0:
            arriving.unlink(missing_ok=True)
            self._unfinished.add(arriving)
        _write(arriving, part.offset, part.data)
        if part.offset + len(part.data) == part.total_bytes:
            os.replace(arriving, target)
            self._unfinished.discard(arriving)

    def close(self) -> None:
        """Remove files that are incomplete because their host was lost."""
        for arriving in self._unfinished:
            with suppress(OSError):
                arriving.unlink(missing_ok=True)
        self._unfinished.clear()


def checked_path(path: str) -> PurePosixPath:
    """The path of a file directly in one of FOLDERS. Raises ValueError."""
    pure = PurePosixPath(path)
    if len(pure.parts) != 2 or pure.parts[0] not in FOLDERS or pure.name.startswith(".") or "\0" in path:
        raise ValueError(f"a file {path!r} came, expected one in {', '.join(FOLDERS)} of the run folder")
    return pure


def _write(file: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "is no regular file", str(file))
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(descriptor)
