"""A server's part in changes of membership, in threads beside BytePS's main loop, which runs in C++ without the GIL."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dynamix_ps.comm.byteps.elastic import ElasticServer
from dynamix_ps.comm.plane import ServerPlane, is_elastic
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import PeerLostError, UsageError
from dynamix_ps.membership.messages import (
    Fence,
    Fenced,
    FromCoordinator,
    Process,
    Processes,
    Refused,
    ToCoordinator,
    incarnation_of,
)
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.encryption import certificates_for
from dynamix_ps.rpc.member import Member

_LOOK_S = 0.5  # a thread that waits for losses sees so often whether it is to end, and whether workers are silent
_LOOKS_PER_LEASE = 10  # at least


class ServerMember:
    """Keeps the sums of a server in step with the members of the job.

    Args:
        process: this server.
        plane: its sums.
        replaced: called, with the reason, when the others go on without this server. It ends the process.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        plane: ServerPlane,
        replaced: Callable[[str], None] | None = None,
    ) -> None:
        self._plane, self._lease_s = plane, access.timeouts.lease_s
        self._replaced = replaced or _end
        self._generation = 0
        self._workers: Processes = frozenset()  # that may push, by the newest fence
        self._closing = threading.Event()
        self._member = Member(access, process, self._act)
        self._watch = threading.Thread(target=self._watch_losses, name="dynamix-losses", daemon=True)

    def start(self) -> None:
        """Make this server a member. Returns at once."""
        self._member.start()
        self._watch.start()

    def close(self) -> None:
        """End the membership after all workers have left. Waits a few seconds at most."""
        self._closing.set()
        self._member.close()
        self._watch.join(2 * _LOOK_S)

    def _watch_losses(self) -> None:
        while not self._closing.is_set():
            self._suspect_lost(min(_LOOK_S, self._lease_s / _LOOKS_PER_LEASE))
            silent = self._plane.silent(self._lease_s)
            self._member.waits(frozenset(worker for worker in self._workers if worker.slot in silent))

    def _suspect_lost(self, timeout_s: float) -> None:
        """Suspect the workers whose connections have closed; waits this time for the first."""
        while (loss := self._plane.next_loss(timeout_s)) is not None:
            if loss.kind == "worker":
                self._suspect(loss.rank)
            timeout_s = 0.0

    def _suspect(self, slot: int) -> None:
        """Suspect the worker in this slot, unless its loss is decided already: a joiner may then take the slot."""
        if not self._workers:
            self._member.suspect("worker", slot)
        for worker in self._workers:
            if worker.slot == slot:
                self._member.suspect("worker", slot, worker.incarnation)

    def _act(self, message: FromCoordinator) -> Iterable[ToCoordinator]:
        match message:
            case Fence(generation, first_round):
                self._suspect_lost(0.0)  # of those before the newcomers that this message names
                self._workers = message.workers
                if generation > self._generation:
                    self._generation = generation
                    self._plane.fence(generation, first_round)
                return [Fenced(generation)]
            case Refused(_, reason) if not self._closing.is_set():
                self._replaced(reason)
        return []


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
