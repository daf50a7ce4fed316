"""What a worker keeps of the round it is in: its own part, which keys are pushed, and the answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynamix_ps.membership.data_messages import Answer, Part, Push
from dynamix_ps.membership.messages import Process, Processes


class ProtocolError(RuntimeError):
    """Something that cannot be: the protocol, or who follows it, is wrong."""


@dataclass(slots=True)
class RoundInFlight:
    """A new one for each round."""

    number: int
    generation: int  # of its pushes
    places: Mapping[int, Process]  # server of each key
    part: Part | None = None  # from the first push on; sent again as it is
    pushed: int = 0  # keys, from 0 on
    answers: dict[int, Mapping[Process, Part] | None] = field(default_factory=dict)  # None: overwritten while read

    @property
    def complete(self) -> bool:
        """All keys are pushed and answered."""
        return self.pushed == len(self.places) == len(self.answers)

    def push(self, key: int, part: Part, expected: int) -> tuple[Process, Push]:
        """The message that pushes a key."""
        self.part = part
        return self.places[key], Push(self.generation, self.number, key, expected, part)

    def anew(self, generation: int, places: Mapping[int, Process]) -> None:
        """All that was pushed will be pushed again, and no earlier answer counts."""
        self.generation, self.places, self.answers = generation, places, {}

    def take(self, answer: Answer) -> None:
        """Read an answer from the server's memory."""
        self.answers[answer.key] = None if answer.sum.overwritten else dict(answer.sum.parts)

    def unanswered(self) -> Processes:
        """Servers that have pushed keys, and have not answered."""
        return frozenset(server for key, server in self.places.items() if key < self.pushed and key not in self.answers)

    def parts(self) -> Mapping[Process, Part]:
        """The parts of the sum, which are the same in all keys.

        Raises:
            ProtocolError: they are not.
        """
        first = self.answers[0]
        if first is None or any(other != first for other in self.answers.values()):
            raise ProtocolError(f"round {self.number}: key 0 has other parts than another key")
        return first
