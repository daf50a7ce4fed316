"""What a run holds outside its run folder, recorded in its scratch folder, which nobody but its user can enter.

A later run reads the records of dead runs and acts on them, perhaps as root. So it believes only a record that this
user alone can have written: folder and file are opened without following links, and what is open is checked.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_RECORD = "holdings.json"
_LONGEST_RECORD_BYTES = 1 << 20
_LONGEST_SCRATCH = 80  # characters; a socket's whole path may have 107
_FOLDER_PREFIX = "dynamix-"
_OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OWN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place must not block


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one run holds on one host.

    Its processes have `run_id` and `host` in their environment; an empty `run_id` means no processes.
    """

    run_id: str
    shm_prefix: str
    scratch: str
    cgroups: tuple[str, ...] = ()
    launcher_pid: int = 0
    launcher_start: str = ""
    host: str = ""  # empty: of any

    def save(self) -> None:
        """Write a record into the scratch folder, so that a later run can clean up after this one. Raises OSError."""
        record = os.open(Path(self.scratch) / _RECORD, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(record, "w", encoding="utf-8") as file:
            file.write(self.to_json())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Holdings:
        """Raises ValueError, TypeError or KeyError when the text is not such a record."""
        data = json.loads(text)
        return cls(**{**data, "cgroups": tuple(data["cgroups"])})

    @property
    def abandoned(self) -> bool:
        """Whether the process that made them is gone."""
        return start_of(self.launcher_pid) != self.launcher_start


def new_scratch_path(label: str) -> Path:
    """A path that nobody can foresee for a scratch folder: in the temporary folder, or in /tmp if it is too long."""
    path = _scratch_base() / f"{_FOLDER_PREFIX}{label}-{secrets.token_hex(8)}"
    return path if len(str(path)) <= _LONGEST_SCRATCH else Path("/tmp") / path.name


def new_shm_prefix(label: str) -> str:
    """The beginning of the names of a run's shared memory, which nobody can foresee and make segments under."""
    return f"dynamix_{label}_{secrets.token_hex(8)}_"


def make_scratch(scratch: Path, sockets: int) -> Path:
    """Make the folder, for this user alone, with one folder for sockets per worker in it.

    Raises OSError, also where something of this name is there already.
    """
    scratch.mkdir(mode=0o700)
    make_socket_folders(scratch, range(sockets))
    return scratch


def make_socket_folders(scratch: Path, ranks: Iterable[int]) -> None:
    """Make the folder for the sockets of each worker. Raises OSError."""
    for rank in ranks:
        (scratch / f"w{rank}").mkdir(mode=0o700)


def own_scratch_folders() -> Iterator[Path]:
    """The scratch folders of this user's runs."""
    for folder in {_scratch_base(), Path("/tmp")}:
        for path in sorted(folder.glob(f"{_FOLDER_PREFIX}*")):
            try:
                handle = _open_own_folder(path)
            except OSError:
                continue  # gone, a link, or of another user
            os.close(handle)
            yield path


def recorded_holdings() -> Iterator[Holdings]:
    """The records in this user's scratch folders. What another user can have written is left out."""
    for scratch in own_scratch_folders():
        holdings = read_record(scratch)
        if holdings is not None:
            yield holdings


def read_record(scratch: Path) -> Holdings | None:
    """The record in a scratch folder, if only this user can have written it and it is whole; otherwise none."""
    try:
        folder = _open_own_folder(scratch)
        try:
            holdings = Holdings.from_json(_read_own_file(_RECORD, folder))
        finally:
            os.close(folder)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    told = holdings.scratch == str(scratch) and holdings.shm_prefix.startswith("dynamix_")
    return holdings if told and re.fullmatch(r"[0-9a-f]{8,}|", holdings.run_id) else None


def start_of(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty if it is gone. With the pid this identifies a process."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat_line.rpartition(")")[2].split()[19]


def _scratch_base() -> Path:
    return Path(tempfile.gettempdir())


def _open_own_folder(path: Path) -> int:
    """A descriptor of a folder of this user that nobody else can enter. Raises OSError if it is not that."""
    handle = os.open(path, _OWN_FOLDER)
    if not _is_private(os.fstat(handle)):
        os.close(handle)
        raise PermissionError(f"{path} belongs to another user, or is open to others")
    return handle


def _read_own_file(name: str, folder: int) -> str:
    """The text of a regular file of this user that nobody else can open. Raises OSError if it is not that."""
    with open(os.open(name, _OWN_FILE, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or not _is_private(found):
            raise PermissionError(f"{name} is no regular file of this user alone")
        return file.read(_LONGEST_RECORD_BYTES).decode()


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & 0o077
