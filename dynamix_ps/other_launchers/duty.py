"""What a companion is told by the worker that starts it, on its standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dynamix_ps.launch.roles.plan import RoleSpec

DONE = b"done"  # a line: the worker has left the others in order, and ends as soon as the companion has


@dataclass(frozen=True, slots=True)
class Duty:
    """Attributes:
    pids: of the workers on this machine, by rank.
    own_rank: of the worker that starts the companion.
    scratch: folder with a record of what is to be released in the end.
    mark: file of the iterations that this worker has completed.
    patience_s: the companion waits for the first of them no longer than so.
    away: how many other machines send their records here.
    launch: fields of the event that begins the record.
    argv: command line of the worker.
    exposed: calls between hosts go unencrypted.
    listener: descriptor on which the other machines are awaited; None: there are none.
    records: host:port of the companion that keeps the records; empty: it is this one.
    roles: scheduler and servers to start.
    """

    pids: dict[int, int]
    own_rank: int
    scratch: str
    mark: str
    patience_s: float
    away: int = 0
    launch: Mapping[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    exposed: bool = False
    listener: int | None = None
    records: str = ""
    roles: list[RoleSpec] = field(default_factory=list)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, line: bytes) -> Duty:
        told = json.loads(line)
        pids = {int(rank): pid for rank, pid in told["pids"].items()}
        return cls(**{**told, "pids": pids, "roles": [RoleSpec(**one) for one in told["roles"]]})
