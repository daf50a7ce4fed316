"""The record of what a run holds outside its run folder, in a scratch folder that only its user can enter.

A later run reads the records of dead runs and acts on them, perhaps as root. So it accepts a record only if no other
user can have written it: it opens folder and file without following links, and checks what it has opened. The process
that made a record keeps it locked until it ends.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from dynamix_ps.bounded_json import value_in
from dynamix_ps.launch.cleanup.owner_lock import hold, owner_has_ended

_RECORD = "holdings.json"
_LONGEST_RECORD_BYTES = 1 << 20
_LONGEST_SCRATCH = 80  # characters; a socket's whole path may have 107
_FOLDER_PREFIX = "dynamix-"
_OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NOT_BELIEVED = (OSError, ValueError, TypeError, KeyError)
_OWN_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place must not block


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one run holds on one host.

    Its processes have `run_id` and `host` in their environment; an empty `run_id` means no processes.
    """

    run_id: str
    shm_prefix: str
    scratch: str
    cgroups: tuple[str, ...] = ()
    host: str = ""  # empty: of any
    boot_id: str = field(default_factory=_boot_id)
    machine: str = field(default_factory=socket.gethostname)

    def save(self) -> int:
        """Write the record into the scratch folder, so that a later run can clean up after this one. Raises OSError.

        Returns a descriptor that locks the record while it is open. Programs that this process starts get no copy.
        """
        record = os.open(Path(self.scratch) / _RECORD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        hold(record)  # before it is a record: nobody else locks an empty file
        os.write(record, self.to_json().encode())
        return record

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Holdings:
        """Raises ValueError, TypeError or KeyError where the text is no record."""
        data = value_in(text)
        return cls(**{**data, "cgroups": tuple(data["cgroups"])})

    @property
    def elsewhere(self) -> bool:
        """Whether the run is on another machine that shares this temporary folder; its locks may not show here.

        A reboot changes the boot id of a machine, not its name.
        """
        return self.boot_id != _boot_id() and self.machine != socket.gethostname()


def new_scratch_path(label: str) -> Path:
    """An unpredictable path for a scratch folder: in the temporary folder, or in /tmp if that path is too long."""
    path = _scratch_base() / f"{_FOLDER_PREFIX}{label}-{secrets.token_hex(8)}"
    return path if len(str(path)) <= _LONGEST_SCRATCH else Path("/tmp") / path.name


def new_shm_prefix(label: str) -> str:
    """An unpredictable prefix for the names of a run's shared memory, so that no other user can make segments first."""
    return f"dynamix_{label}_{secrets.token_hex(8)}_"


def make_scratch(scratch: Path, sockets: int) -> Path:
    """Make the folder, for this user alone, with one folder for sockets per worker in it.

    Raises OSError, also where a file or folder of this name exists.
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
    """The records in this user's scratch folders. Records that another user can have written are left out."""
    for scratch in own_scratch_folders():
        holdings = read_record(scratch)
        if holdings is not None:
            yield holdings


def abandoned_holdings() -> Generator[Holdings, None, None]:
    """The records whose owner has ended. No other process gets the same record until the caller asks for the next."""
    for scratch in own_scratch_folders():
        with ExitStack() as held:
            try:
                record = held.enter_context(_open_record(scratch))
                holdings = _read(record, scratch)
            except _NOT_BELIEVED:
                continue
            if not holdings.elsewhere and owner_has_ended(record.fileno()):
                yield holdings


def read_record(scratch: Path) -> Holdings | None:
    """The record in a scratch folder; None if another user can have written it or it is incomplete."""
    try:
        with _open_record(scratch) as record:
            return _read(record, scratch)
    except _NOT_BELIEVED:
        return None


def _scratch_base() -> Path:
    return Path(tempfile.gettempdir())


def _open_own_folder(path: Path) -> int:
    """A descriptor of a folder that only this user can enter. Raises OSError for any other folder."""
    handle = os.open(path, _OWN_FOLDER)
    if not _is_private(os.fstat(handle)):
        os.close(handle)
        raise PermissionError(f"{path} belongs to another user, or is open to others")
    return handle


def _open_record(scratch: Path) -> BinaryIO:
    """A regular file in such a folder that only this user can open. Raises OSError for any other file."""
    folder = _open_own_folder(scratch)
    try:
        record = os.fdopen(os.open(_RECORD, _OWN_FILE, dir_fd=folder), "rb")
    finally:
        os.close(folder)
    found = os.fstat(record.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or not _is_private(found):
        record.close()
        raise PermissionError(f"{_RECORD} is no regular file of this user alone")
    return record


def _read(record: BinaryIO, scratch: Path) -> Holdings:
    """Raises ValueError, TypeError or KeyError where the file is no record of this scratch folder."""
    holdings = Holdings.from_json(record.read(_LONGEST_RECORD_BYTES).decode())
    told = holdings.scratch == str(scratch) and holdings.shm_prefix.startswith("dynamix_")
    if not told or not re.fullmatch(r"[0-9a-f]{8,}|", holdings.run_id):
        raise ValueError(f"not the record of {scratch}")
    return holdings


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & 0o077
