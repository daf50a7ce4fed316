"""How two processes of a run prove to each other that they know its token, which does not travel.

Each draws a random number. A proof is HMAC-SHA-256(token, protocol, side, both random numbers), as on the data plane
(byteps_build/sources/token_proof.h). A recorded proof is worth nothing on another connection, and that of one side is
none of the other.
"""

from __future__ import annotations

import hmac
import secrets

RANDOM_BYTES = PROOF_BYTES = 32


def random_number() -> bytes:
    return secrets.token_bytes(RANDOM_BYTES)


def proof(token: str, protocol: str, side: str, both: bytes) -> bytes:
    return hmac.digest(token.encode(), f"dynamix {protocol}, {side}\n".encode() + both, "sha256")


def is_proven(told: bytes, expected: bytes) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(told, expected)
