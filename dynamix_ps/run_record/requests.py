"""What commands ask of the launcher of a run that goes on: lines in its run folder."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

LEAVE, JOIN = "leave", "join"
_KINDS, _ROLES = (LEAVE, JOIN), ("worker", "server")


class MembershipRequest(NamedTuple):
    """A worker is asked to leave, or a worker or server shall be started again."""

    kind: str
    number: int  # of a worker: its rank
    role: str = "worker"
    host: str = ""  # on which it shall start; empty: on its own
    slots: int = 1  # of that host, where it is new

    @property
    def name(self) -> str:
        """Of the role."""
        return f"{self.role}-{self.number}"


class Requests:
    """What is asked, as the launcher reads it."""

    def __init__(self, folder: RunFolder) -> None:
        self._tail = JsonLinesTail(folder.requests_file)

    def read(self) -> list[MembershipRequest]:
        """What was asked since the last call."""
        fields = MembershipRequest._fields
        found = (MembershipRequest(*(line.get(name) for name in fields)) for line in self._tail.read())  # type: ignore[arg-type]
        return [one for one in found if _is_usable(one)]


def _is_usable(one: MembershipRequest) -> bool:
    known = one.kind in _KINDS and one.role in _ROLES
    return known and type(one.number) is type(one.slots) is int and one.slots > 0 and type(one.host) is str


def request(folder: RunFolder, kind: str, number: int, role: str = "worker", host: str = "", slots: int = 1) -> None:
    """Have the launcher read it. Raises EnvironmentNotReady: the run folder cannot be written."""
    line = json.dumps({**MembershipRequest(kind, number, role, host, slots)._asdict(), "time_s": time.time()})
    try:
        with folder.requests_file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {folder.requests_file}: {error.strerror or error}") from error
