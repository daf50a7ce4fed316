"""A role's stream of membership: what it tells the coordinator, and what it does at the coordinator's word.

It has a thread of its own, so the caller never waits. While the coordinator cannot be reached, it connects again. A
message that is lost with a connection is asked for again, or sent again: the coordinator repeats what a role may have
missed whenever the role comes back, and what a role keeps telling is repeated here. A stream also ends at its
deadline, and another one begins in the same way. In a forked child it does nothing.
"""

from __future__ import annotations

import os
import queue
import random
import threading
from collections.abc import Callable, Iterator

import grpc

from dynamix_ps.membership.effects import Tell
from dynamix_ps.membership.messages import FromCoordinator, Process, Processes, ToCoordinator, Waiting
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.backoff import backoff_s
from dynamix_ps.rpc.client import FIRST_RETRY_S, LONGEST_RETRY_S
from dynamix_ps.rpc.link import MemberLink, is_final
from dynamix_ps.rpc.membership_codec import pack, sender_to_proto, unpack_said
from dynamix_ps.rpc.refusals import RefusalError

_Outgoing = queue.SimpleQueue["ToCoordinator | None"]  # None: the connection is over
_LARGEST_CLUSTER = 1024  # no message is longer than one that names so many workers


class Member:
    """The stream of one role.

    Args:
        process: this role. A worker or a server is a member of the job from its first connection on.
        act: called in the stream's thread with what the coordinator says.
    """

    def __init__(
        self,
        access: ArbitratorAccess,
        process: Process,
        act: Callable[[FromCoordinator], None] = lambda message: None,
    ) -> None:
        self._access, self._process, self._act = access, process, act
        self._pid = os.getpid()
        self._waiting: Processes = frozenset()  # as told last
        self._lock = threading.Lock()  # of the two below
        self._outgoing: _Outgoing = queue.SimpleQueue()
        self._kept: list[ToCoordinator] = []  # to be told on every connection
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-member", daemon=True)

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._thread.start()

    def waits(self, processes: Processes) -> None:
        """Somebody waits here for these in vain. To be called again and again: a message may be lost."""
        if processes or self._waiting:
            self._waiting = processes
            self.tell(Waiting(processes))

    def tell(self, message: ToCoordinator, keep: bool = False) -> None:
        """Tell it now; `keep`: and again on every later connection. Never blocks."""
        with self._lock:
            if keep and message not in self._kept:
                self._kept.append(message)
            self._outgoing.put(message)

    def follow(self, effect: Tell) -> None:
        """Tell it as a decision says. Never blocks."""
        self.tell(effect.message, effect.keep)

    def close(self, last: ToCoordinator | None = None) -> None:
        """End the stream, after the coordinator has taken `last` in. Waits at most `rpc_s`, twice."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        with self._lock:
            if last is not None:
                self._outgoing.put(last)
            self._outgoing.put(None)
        self._thread.join(2 * self._access.timeouts.rpc_s)

    def _run(self) -> None:
        delays = self._delays()
        while True:
            link = MemberLink(self._access, _LARGEST_CLUSTER)
            try:
                for message in link.messages(self._requests(self._begin())):
                    delays = self._delays()
                    self._act(unpack_said(message))
            except grpc.RpcError as error:
                if is_final(error):
                    return
            except RefusalError:  # nothing that this version says; the worker's client tells of such an arbitrator
                return
            finally:
                with self._lock:
                    self._outgoing.put(None)
                link.close()
            if self._closing.wait(next(delays)):
                return

    def _begin(self) -> _Outgoing:
        """The queue of a new connection."""
        with self._lock:
            fresh: _Outgoing = queue.SimpleQueue()
            for kept in self._kept:
                fresh.put(kept)
            while not self._outgoing.empty():  # what came between two connections, and the end
                left = self._outgoing.get()
                if left is not None and left not in self._kept:
                    fresh.put(left)
            self._outgoing = fresh
            if self._closing.is_set():
                fresh.put(None)
        return fresh

    def _requests(self, outgoing: _Outgoing) -> Iterator[pb.MembershipMessage]:
        """What goes out on one connection, with a sign of life whenever nothing else does."""
        yield sender_to_proto(self._process)
        while True:
            try:
                message = outgoing.get(timeout=self._access.timeouts.lease_s / 3)
            except queue.Empty:
                yield pb.MembershipMessage()
                continue
            if message is None:
                return
            yield pack(message)

    def _delays(self) -> Iterator[float]:
        return backoff_s(FIRST_RETRY_S, LONGEST_RETRY_S, random.Random(self._process.incarnation))
