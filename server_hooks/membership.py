"""A server's part in changes of membership, in threads beside BytePS's main loop, which runs in C++ without the GIL.

I/O around dynamix_ps/membership/server.py."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynamix_ps.comm.byteps.elastic import ElasticServer
from dynamix_ps.comm.elastic_job import is_elastic
from dynamix_ps.comm.peer_watch import PeerWatch
from dynamix_ps.comm.plane import PeerFailure, Plane
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import PeerLostError, UsageError
from dynamix_ps.membership.effects import Tell
from dynamix_ps.membership.messages import FromCoordinator, Process, incarnation_of
from dynamix_ps.membership.server import Effects, Server
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.encryption import certificates_for
from dynamix_ps.rpc.member import Member


class ServerMember:
    """Says whom this server cannot reach, and ends it when the others go on without it.

    Args:
        process: this server.
        plane: its sums.
        replaced: called, with the reason, when the others go on without this server. It ends the process.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        plane: Plane,
        replaced: Callable[[str], None] | None = None,
    ) -> None:
        self._plane, self._lease_s = plane, access.timeouts.lease_s
        self._replaced = replaced or _end
        self._server = Server()
        self._is_closing = False
        self._member = Member(access, process, self._act)
        self._watch = PeerWatch(plane, self._lease_s, self._closed, self._look)

    def start(self) -> None:
        """Make this server a member. Returns at once."""
        self._member.start()
        self._watch.start()

    def close(self) -> None:
        """End the membership after all workers have left. Waits a few seconds at most."""
        self._is_closing = True
        self._member.close()
        self._watch.close()

    def _closed(self, loss: PeerFailure) -> None:
        if loss.kind == "worker":
            self._follow(self._server.on_closed(loss.rank))

    def _look(self) -> None:
        self._member.waits(self._server.waits_for(self._plane.silent(self._lease_s)))

    def _act(self, message: FromCoordinator) -> None:
        self._watch.tell()  # of those before the newcomers that this message names
        self._follow(self._server.on_message(message))

    def _follow(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self._member.follow(effect)
            elif not self._is_closing:
                self._replaced(effect.reason)


@contextmanager
def member() -> Iterator[None]:
    """Follow changes of membership while the server runs, if this environment's job is elastic.

    Raises:
        ConfigError: the cluster file is wrong.
        EnvironmentNotReady: BytePS is not installed, or there are no usable certificates.
        UsageError: a variable that names the coordinator is missing.
    """
    one = _member_here() if is_elastic() else None
    if one is not None:
        one.start()
    try:
        yield
    finally:
        if one is not None:
            one.close()


def _member_here() -> ServerMember:
    names = (variables.CONFIG, variables.ARBITRATOR, variables.RUN_ID, variables.TOKEN, "DMLC_SERVER_ID")
    values = {name: variables.get(name) for name in names}
    if missing := [name for name, value in values.items() if value is None]:
        raise UsageError(f"{variables.ELASTIC} is 1, but a server of an elastic job also needs {', '.join(missing)}")
    config_file, address, run_id, token, slot = (str(values[name]) for name in names)
    config = load_config(config_file)
    access = ArbitratorAccess(address, run_id, token, config.timeouts, certificates_for(address, config))
    starts = variables.get(variables.STARTS)  # by which the launcher knows this server, where there is one
    incarnation = uuid.uuid4().hex if starts is None else incarnation_of(int(starts))
    return ServerMember(access, Process("server", int(slot), incarnation), ElasticServer())


def _end(reason: str) -> None:
    """End this server: the others count it as lost, and send it nothing."""
    print(f"error: the job goes on without this server: {reason}", file=sys.stderr, flush=True)
    os._exit(PeerLostError.exit_code)
