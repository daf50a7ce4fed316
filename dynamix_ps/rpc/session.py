"""Calls between two sides that have proven to each other that they know the run's token. Pure.

    client                                       arbitrator
    Greet: random bytes                    -->
                                           <--   random bytes, its proof
    each call: session, number, proof      -->   before any message is read
    each message: proof, message          <-->
    a refusal: its status                  <--   with a proof

A session is the random bytes of both sides, and its key is HMAC-SHA-256(token, those bytes). Every later proof is an
HMAC with this key: of a call, over its number and method; of a message, over the number of the call, the sender, the
place of the message in the call, and the message. The number of a call counts once. So whoever has recorded what was
said, or has taken the port in between, can neither call nor answer.

The arbitrator remembers a session from its first proven call on. Until then its random bytes tell that it has drawn
them itself, and when, so a stranger takes up no memory.
"""

from __future__ import annotations

import hmac
import itertools
import struct
import time
from collections import OrderedDict
from collections.abc import Callable

from dynamix_ps.rpc.refusals import UnknownSessionError, UnprovenCallError
from dynamix_ps.token_proof import PROOF_BYTES, RANDOM_BYTES, is_proven, proof, random_number

PROTOCOL = "arbitrator 3"
FIRST_CALL_S = 30  # from a greeting to the first call
_NUMBERS = 1024  # calls of a client that may overtake each other
_CALL = struct.Struct(f">{2 * RANDOM_BYTES}sQ{PROOF_BYTES}s")
_GREETING = struct.Struct(f">{RANDOM_BYTES}s{PROOF_BYTES}s")
_MOMENT = struct.Struct(">Q")  # nanoseconds


class Call:
    """One call, on either side. Messages are sealed, and opened, in the order in which they travel."""

    def __init__(self, key: bytes, number: int, sender: str, other: str) -> None:
        self._key, self._number, self._sender, self._other = key, number, sender, other
        self._sealed = self._opened = 0

    def seal(self, message: bytes) -> bytes:
        """The next message to the other side, with its proof."""
        self._sealed += 1
        return self._proof(self._sender, self._sealed, message) + message

    def open(self, sealed: bytes) -> bytes:
        """The next message of the other side. Raises UnprovenCallError if it is not what that has sealed."""
        self._opened += 1
        message = sealed[PROOF_BYTES:]
        if not is_proven(sealed[:PROOF_BYTES], self._proof(self._other, self._opened, message)):
            raise UnprovenCallError("a message has no valid proof of the run's token")
        return message

    def proof_of_refusal(self, status: str) -> bytes:
        return self._proof("refusal", 0, status.encode())

    def _proof(self, sender: str, place: int, message: bytes) -> bytes:
        return hmac.digest(self._key, f"{sender} {self._number} {place}\n".encode() + message, "sha256")


class ClientSession:
    """The client's side, after the greeting. Threads may share it."""

    def __init__(self, token: str, own: bytes, reply: bytes) -> None:
        """`own`: the random bytes of the client; `reply`: what came back.

        Raises UnprovenCallError if whoever answers does not know the token.
        """
        both, told = own, b""
        if len(reply) == _GREETING.size:
            theirs, told = _GREETING.unpack(reply)
            both = own + theirs
        if not is_proven(told, proof(token, PROTOCOL, "answering", both)):
            raise UnprovenCallError("what answers does not know the token of this run")
        self._both, self._key = both, _key(token, both)
        self._numbers = itertools.count(1)

    def call(self, method: str) -> tuple[Call, bytes]:
        """A new call, and what proves it to the arbitrator."""
        number = next(self._numbers)
        return Call(self._key, number, "client", "arbitrator"), _CALL.pack(
            self._both, number, _proof_of_call(self._key, number, method)
        )


class Sessions:
    """The arbitrator's side: all sessions. It remembers as many as `limit`, those used last."""

    def __init__(self, token: str, limit: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._token, self._limit, self._clock_ns = token, limit, clock_ns
        self._secret = random_number()
        self._known: OrderedDict[bytes, _Session] = OrderedDict()

    def greeting(self, client: bytes) -> bytes:
        """The answer to the random bytes of a client. Raises UnprovenCallError if they are of another length."""
        if len(client) != RANDOM_BYTES:
            raise UnprovenCallError(f"a greeting has {RANDOM_BYTES} random bytes, got {len(client)}")
        own = self._drawn(client, _MOMENT.pack(self._clock_ns()))
        return _GREETING.pack(own, proof(self._token, PROTOCOL, "answering", client + own))

    def admit(self, method: str, told: bytes) -> Call:
        """The call that a client proves by `told`. Raises RefusalError if it does not."""
        if len(told) != _CALL.size:
            raise UnprovenCallError("the call has no proof of the run's token")
        both, number, proven = _CALL.unpack(told)
        session = self._known.get(both) or self._begun(both)
        if session is None:
            raise UnknownSessionError("the session is not known here; greet again")
        if not is_proven(proven, _proof_of_call(session.key, number, method)) or not session.is_new(number):
            raise UnprovenCallError("the call has no valid proof of the run's token")
        self._known[both] = session
        self._known.move_to_end(both)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return Call(session.key, number, "arbitrator", "client")

    def _begun(self, both: bytes) -> _Session | None:
        """A session after its greeting, if that is not long ago."""
        client, own = both[:RANDOM_BYTES], both[RANDOM_BYTES:]
        moment = own[: _MOMENT.size]
        age_s = (self._clock_ns() - _MOMENT.unpack(moment)[0]) / 1e9
        if not is_proven(own, self._drawn(client, moment)) or age_s > FIRST_CALL_S:
            return None
        return _Session(_key(self._token, both))

    def _drawn(self, client: bytes, moment: bytes) -> bytes:
        return moment + hmac.digest(self._secret, client + moment, "sha256")[: RANDOM_BYTES - _MOMENT.size]


class _Session:
    """Its key, and which calls there were: the newest number, and a bit for each of those right before it."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._newest, self._seen = 0, 0

    def is_new(self, number: int) -> bool:
        """Whether this number has not been used. It counts as used afterwards."""
        if number > self._newest:
            steps = min(number - self._newest, _NUMBERS)
            self._newest, self._seen = number, (self._seen << steps | 1) & ((1 << _NUMBERS) - 1)
            return True
        bit = 1 << min(self._newest - number, _NUMBERS)
        if self._seen & bit or bit >> _NUMBERS:
            return False
        self._seen |= bit
        return True


def _key(token: str, both: bytes) -> bytes:
    return proof(token, PROTOCOL, "session", both)


def _proof_of_call(key: bytes, number: int, method: str) -> bytes:
    return hmac.digest(key, f"call {number} {method}".encode(), "sha256")
