"""The store through which the processes of a job tell each other what they need before there is a data plane.

It is torch's, and has no secrets: whoever reaches its port can read all of it.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import psutil

from dynamix_ps import errors
from dynamix_ps.addresses import host_port
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, PeerLostError, TimedOut, UsageError
from dynamix_ps.other_launchers.place import MeetingPlace

PATIENCE_S = 1800.0  # as that of torch.distributed
_NOTE_S = 10.0  # the first note of who is missing; later ones whenever the wait has doubled
_PAUSES_S = (0.002, 0.2)  # between two looks
_TRY_S = 5.0  # of one connection
_ANSWER_S = timedelta(seconds=60)  # of a question to the store


@dataclass(frozen=True, slots=True)
class JobProcess:
    """What a process says of itself.

    Attributes:
        machine: the same for all processes that see the same files and each other.
        address: of its machine, on the route to the meeting place.
        agent: the process that has started it.
    """

    pid: int
    machine: str
    address: str
    agent: str
    version: str | None
    name: str = field(default_factory=partial(secrets.token_hex, 8))  # numbers of processes come again


class Meeting:
    """All processes of a job say things under names, once each, and read what others say.

    A launcher that starts the job again may keep its store, in which earlier processes have met. So rank 0 opens a room
    of its own, and a process that finds a room in which others have met looks for the next one.

    Attributes:
        processes: what each process has said of itself, in the order of ranks.
    """

    def __init__(self, place: MeetingPlace, process: JobProcess, patience_s: float = PATIENCE_S) -> None:
        """Connect, and meet the others. `process`: what this process says of itself.

        Raises:
            EnvironmentNotReady: rank 0 cannot listen.
            UsageError: another process that runs has this rank.
            TimedOut: some processes have not come.
            PeerLostError: the store is gone.
        """
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not export it

        self._place, self._patience_s, self._me = place, patience_s, process
        hosts = place.rank == 0 and not place.hosted
        self._store = PrefixStore(f"dynamix/{place.job}", _hosted(place) if hosts else self._found())
        self._room = ""
        self.processes: list[JobProcess] = []
        with self._told_if_lost():
            self._open_room() if place.rank == 0 else self._find_room()

    def _found(self) -> Any:
        """The store of somebody else, as soon as it is there."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        place = self._place

        def listens() -> bool:
            try:
                socket.create_connection((place.host, place.port), _TRY_S).close()  # torch prints what it cannot reach
            except OSError:
                return False
            return True

        self._wait(listens, lambda: f"rank 0, which is to listen on {host_port(place.host, place.port)}")
        return TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=_ANSWER_S)

    def _open_room(self) -> None:
        if (before := self._read("root")) is not None:
            self._refuse_second(JobProcess(**before["process"]))
        self._room = secrets.token_hex(8)
        self._write("root", {"room": self._room, "process": asdict(self._me)})
        self.say("process", asdict(self._me))
        self.processes = [JobProcess(**told) for told in self.said_by_all("process")]
        self._write(f"{self._room}/met", [asdict(one) for one in self.processes])

    def _find_room(self) -> None:
        rank, said_in = self._place.rank, ""

        def has_met() -> bool:
            nonlocal said_in
            root = self._read("root")
            if root is None:
                return False
            self._room = root["room"]
            if said_in != self._room:
                said_in = self._room
                self.say("process", asdict(self._me))
            if (met := self._read(f"{self._room}/met")) is None:
                return False
            self.processes = [JobProcess(**told) for told in met]
            if self.processes[rank] == self._me:
                return True
            self._refuse_second(self.processes[rank])
            return False

        def missing() -> str:
            room = self._read("root")
            if room is None or self._read(f"{room['room']}/met") is not None:
                return "rank 0"
            others = range(self._place.size)
            return _ranks(one for one in others if not self._store.check([f"{room['room']}/process/{one}"]))

        self._wait(has_met, missing)

    def _refuse_second(self, other: JobProcess) -> None:
        """Raises UsageError if another process with this rank runs on this machine."""
        if other != self._me and other.machine == self._me.machine and psutil.pid_exists(other.pid):
            raise UsageError(
                f"process {other.pid} takes part as rank {self._place.rank} already, and a worker is one process; this "
                f"one ({self._me.pid}) has the same variables: start it without those of {self._place.launcher}, and "
                "it trains alone"
            )

    def say(self, what: str, value: Any) -> None:
        """Tell the others `value`, in JSON's types."""
        self._write(f"{self._room}/{what}/{self._place.rank}", value)

    def said_by(self, what: str, rank: int) -> Any:
        """What another process says, as soon as it does. Raises TimedOut; what rank 0 refuses is raised here too."""
        return self._said(what, [rank])[0]

    def said_by_all(self, what: str) -> list[Any]:
        """What all say, in the order of ranks. Raises TimedOut, which names those that are missing."""
        return self._said(what, range(self._place.size))

    def refuse(self, error: DynamixError) -> None:
        """All that wait for rank 0 raise this too. A store that ends with this process waits for them a moment."""
        self._write(f"{self._room}/refused", {"error": type(error).__name__, "text": str(error)})
        until_s = time.monotonic() + (0.0 if self._place.hosted else _TRY_S)
        while self._store.add(f"{self._room}/heard", 0) < self._place.size - 1 and time.monotonic() < until_s:
            time.sleep(_PAUSES_S[0])

    def _said(self, what: str, ranks: Sequence[int]) -> list[Any]:
        names, awaited = [f"{self._room}/{what}/{rank}" for rank in ranks], list(ranks)

        def are_there() -> bool:
            refused = self._read(f"{self._room}/refused") if self._place.rank else None
            if refused is not None:
                self._store.add(f"{self._room}/heard", 1)
                raise getattr(errors, refused["error"], DynamixError)(refused["text"])
            while awaited and self._store.check([names[-len(awaited)]]):
                del awaited[0]
            return not awaited

        def missing() -> str:
            return _ranks(rank for rank, name in zip(ranks, names, strict=True) if not self._store.check([name]))

        with self._told_if_lost():
            self._wait(are_there, missing)
            return [self._read(name) for name in names]

    def _write(self, name: str, value: Any) -> None:
        self._store.set(name, json.dumps(value))

    def _read(self, name: str) -> Any:
        """None: nobody has written it."""
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    @contextmanager
    def _told_if_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of torch
            raise PeerLostError(
                f"rank {self._place.rank} has lost the store at {host_port(self._place.host, self._place.port)}, where "
                f"it met the others ({str(error).splitlines()[0]}); see the log of rank 0"
            ) from error

    def _wait(self, is_over: Callable[[], bool], missing: Callable[[], str]) -> None:
        """Raises TimedOut."""
        place, began_s, noted_s = self._place, time.monotonic(), _NOTE_S
        while not is_over():
            waited_s = time.monotonic() - began_s
            if waited_s >= self._patience_s:
                raise TimedOut(
                    f"rank {place.rank} has waited {waited_s:.0f} s in attach() for {missing()}; {place.launcher} "
                    f"started {place.size} processes, each of which must call attach()"
                )
            if waited_s >= noted_s:
                noted_s = 2 * waited_s
                print(
                    f"note: rank {place.rank} has waited {waited_s:.0f} s in attach() for {missing()}",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(min(max(waited_s / 20, _PAUSES_S[0]), _PAUSES_S[1]))


def _ranks(ranks: Iterable[int]) -> str:
    return "rank " + ", ".join(map(str, ranks))


def _hosted(place: MeetingPlace) -> Any:
    """A store in this process. It opens its port itself: torch would listen on all interfaces."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = _listening(place.host, place.port)
    return TCPStore(
        place.host,
        place.port,
        is_master=True,
        wait_for_workers=False,
        timeout=_ANSWER_S,
        master_listen_fd=listener.detach(),
    )


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        try:
            return socket.create_server((str(address[0]), port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return socket.create_server(("", port))  # others reach it under an address of a service
    except OSError as error:
        raise EnvironmentNotReady(
            f"rank 0 cannot listen on {host_port(host, port)}, beside MASTER_PORT: {error.strerror or error}; "
            "MASTER_ADDR must be an address of its host, and MASTER_PORT and the port after it must be free"
        ) from error
