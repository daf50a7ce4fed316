"""What a worker that enters gets beside the state of the training: all else that the others know. Pure.

It travels as JSON, which keeps every bit of a float.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dynamix_ps.membership.known_members import Planned


@dataclass(frozen=True, slots=True)
class Handover:
    """As it is before a round.

    Attributes:
        framework: that computes.
        settings: that must be equal on all workers, by key of the cluster file.
        parameters: shape and type of every trained parameter, by name and in order.
        data: a row of a fingerprint of the data set.
        lengths: checksum of the tokens of the samples; 0 where sizes are in samples.
        planned: who makes the round.
        follows: the newcomer is not in it yet, and follows the others.
        round: number of the round.
        sums: what `Comm.known` returned.
        lag: batches that are prepared ahead.
        steps: of all optimizers so far.
        sums_made: so far.
        window: number of the window that all begin when the newcomer is there.
        present: slots of the workers in the last sum, as far as they go on.
        followed: newcomers that follow one of the workers, in JSON's types.
        newest: what `packed` of the last sum returned; none: nobody uses it any more.
        wire: what `packed` of the choice of the wire returned; none: the wire does not change.
        votes, owed, gathers: what `packed` of each returned.
    """

    framework: str
    settings: Mapping[str, str]
    parameters: Mapping[str, str]
    data: Sequence[float]
    lengths: int
    planned: Planned
    follows: bool
    round: int
    sums: Mapping[str, Any]
    lag: int
    steps: int
    sums_made: int
    window: int
    present: Sequence[int]
    followed: Sequence[Mapping[str, Any]]
    newest: Mapping[str, Any] | None
    wire: Mapping[str, Any] | None
    votes: Mapping[str, Any]
    owed: Sequence[Any]
    gathers: Sequence[int]

    def packed(self) -> bytes:
        """As it travels."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, packed: bytes | bytearray) -> Handover:
        """What `packed` returned, of the same version of this package."""
        fields = json.loads(packed)
        return cls(planned=Planned.of(fields.pop("planned")), **fields)
