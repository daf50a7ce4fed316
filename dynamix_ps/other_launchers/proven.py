"""Connections between the companions of a job: both sides prove that they know its token before anything else."""

from __future__ import annotations

import socket

from dynamix_ps.token_proof import PROOF_BYTES, RANDOM_BYTES, is_proven, proof, random_number

_PROTOCOL = "records"
_ANSWER_S = 5.0
CALLER, CALLED = "sends", "receives"


class NotProvenError(OSError):
    """The other side does not know the token."""


def prove(connection: socket.socket, token: str, side: str) -> None:
    """Raises OSError unless the other side knows the token too, and answers in time. `side`: of this process."""
    connection.settimeout(_ANSWER_S)
    mine = random_number()
    connection.sendall(mine)
    theirs = _exactly(connection, RANDOM_BYTES)
    both, other = (mine + theirs, CALLED) if side == CALLER else (theirs + mine, CALLER)
    connection.sendall(proof(token, _PROTOCOL, side, both))
    if not is_proven(_exactly(connection, PROOF_BYTES), proof(token, _PROTOCOL, other, both)):
        raise NotProvenError(0, "the other side does not know the token of this run")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise NotProvenError(0, "the other side has closed the connection")
        data += part
    return data
