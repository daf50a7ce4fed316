"""The store through which the processes of a job tell each other what they need before there is a data plane.

It is torch's, and has no secrets: whoever reaches its port can read all of it.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dynamix_ps import errors
from dynamix_ps.addresses import host_port
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, PeerLostError, TimedOut, UsageError
from dynamix_ps.other_launchers.place import MeetingPlace

PATIENCE_S = 1800.0  # as that of torch.distributed
_NOTE_S = 10.0  # the first note of who is missing; later ones whenever the wait has doubled
_PAUSES_S = (0.002, 0.2)  # between two looks
_TRY_S = 5.0  # of one connection
_ANSWER_S = timedelta(seconds=60)  # of a question to the store


class Meeting:
    """All processes of a job say things under names, once each, and read what others say."""

    def __init__(self, place: MeetingPlace, patience_s: float = PATIENCE_S) -> None:
        """Connect.

        Raises:
            EnvironmentNotReady: rank 0 cannot listen.
            TimedOut: nobody listens.
        """
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not export it

        self._place, self._patience_s = place, patience_s
        hosts = place.rank == 0 and not place.hosted
        self._store = PrefixStore(f"dynamix/{place.job}/{place.attempt}", _hosted(place) if hosts else self._found())

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

    def claim(self, me: str) -> None:
        """Take the place of this rank. Raises UsageError if another process has it."""
        if self._store.add(f"claims/{self._place.rank}", 1) > 1:
            raise UsageError(
                f"another process has taken part as rank {self._place.rank} already, and a worker is one process; "
                f"this one ({me}) has the same variables: start it without those of {self._place.launcher}, and it "
                "trains alone"
            )

    def say(self, what: str, value: Any) -> None:
        """Tell the others `value`, in JSON's types."""
        self._store.set(self._key(what, self._place.rank), json.dumps(value))

    def said_by(self, what: str, rank: int) -> Any:
        """What another process says, as soon as it does. Raises TimedOut; what rank 0 refuses is raised here too."""
        return self._said(what, [rank])[0]

    def said_by_all(self, what: str) -> list[Any]:
        """What all say, in the order of ranks. Raises TimedOut, which names those that are missing."""
        return self._said(what, list(range(self._place.size)))

    def refuse(self, error: DynamixError) -> None:
        """All that wait for rank 0 raise this too. A store that ends with this process waits for them a moment."""
        self._store.set("refused", json.dumps({"error": type(error).__name__, "text": str(error)}))
        until_s = time.monotonic() + (0.0 if self._place.hosted else _TRY_S)
        while self._store.add("heard", 0) < self._place.size - 1 and time.monotonic() < until_s:
            time.sleep(_PAUSES_S[0])

    def _said(self, what: str, ranks: list[int]) -> list[Any]:
        awaited = list(ranks)

        def are_there() -> bool:
            if self._place.rank and self._store.check(["refused"]):
                refused = json.loads(self._store.get("refused"))
                self._store.add("heard", 1)
                raise getattr(errors, refused["error"], DynamixError)(refused["text"])
            while awaited and self._store.check([self._key(what, awaited[0])]):
                del awaited[0]
            return not awaited

        def missing() -> str:
            return "rank " + ", ".join(str(one) for one in awaited if not self._store.check([self._key(what, one)]))

        try:
            self._wait(are_there, missing)
            return [json.loads(self._store.get(self._key(what, rank))) for rank in ranks]
        except RuntimeError as error:  # of torch
            raise PeerLostError(
                f"rank {self._place.rank} has lost the store at {host_port(self._place.host, self._place.port)}, with "
                f"which it met the others ({str(error).splitlines()[0]}); see the log of rank 0"
            ) from error

    def _key(self, what: str, rank: int) -> str:
        return f"{what}/{rank}"

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
