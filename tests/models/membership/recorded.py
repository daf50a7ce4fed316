"""Schedules of the reference plane in a text file, which tests/unit/byteps_build/elastic/replay.cc plays in C++.

`Recorder` makes exchanges and tables that write what happens to them, and what follows from it. Each line is one event
of one component:

    COMPONENT EVENT ARGUMENTS... > EFFECTS...

A contribution is the number of a bit, and a sum of contributions is these bits as `x` and a hexadecimal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from dynamix_ps.membership.sums import SumProgress
from tests.models.membership.exchange import Exchange
from tests.models.membership.pieces import Answer, Key, Push, Value
from tests.models.membership.round_table import RoundTable

_BITS = 60  # more contributions than are in the sums of one or two rounds; then bits are used again


class Recorder:
    """Writes the events of one job after the other."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last: list[str] = []  # line of each component
        self._bits: dict[Value, int] = {}
        self._sums: dict[frozenset[Value], str] = {}

    def begin(self, seed: int) -> None:
        """What follows is of another job."""
        self._file.write(f"seed {seed}\n")
        self._last, self._bits, self._sums = [], {}, {}

    def exchange(self, worker: int, pieces: Sequence[int], contributions: int, servers: int) -> Exchange:
        """An `Exchange` that is recorded."""
        return _RecordedExchange(self, self._new(), worker, pieces, contributions, servers)

    def table(self) -> RoundTable:
        """A `RoundTable` that is recorded."""
        return _RecordedTable(self, self._new())

    def _new(self) -> int:
        self._last.append("")
        return len(self._last) - 1

    def write(self, component: int, event: str, effects: Iterable[str] = ()) -> None:
        """One event of a component. Questions that change nothing are not repeated."""
        line = f"{component} {event} > {' '.join(effects)}\n"
        if line != self._last[component] or event.startswith(("take", "push")):
            self._file.write(line)
            self._last[component] = line

    def bit(self, value: Value) -> int:
        """Of a contribution."""
        return self._bits.setdefault(value, len(self._bits) % _BITS)

    def sum(self, values: frozenset[Value]) -> str:
        """Of contributions."""
        written = self._sums.get(values)
        if written is None:
            written = self._sums[values] = f"x{sum(1 << self.bit(value) for value in values):x}"
        return written


class _RecordedExchange(Exchange):
    def __init__(
        self, recorder: Recorder, component: int, worker: int, pieces: Sequence[int], contributions: int, servers: int
    ) -> None:
        super().__init__(worker, pieces, contributions, servers)
        self._recorder, self._component = recorder, component
        self._write(f"exchange {contributions} {servers} {_words(pieces)}")

    def push(self, number: int, value: Value) -> None:
        sent = len(self.outgoing)
        super().push(number, value)
        self._write(f"push {number} {self._recorder.bit(value)}", self._sent(sent))

    def wait(self) -> dict[Key, frozenset[Value]] | None:
        sums = super().wait()
        found = ["-"] if sums is None else [f"{n}/{p}/{self._recorder.sum(sums[n, p])}" for n, p in sorted(sums)]
        self._write("wait", found)
        return sums

    def expect(self, contributions: int) -> None:
        super().expect(contributions)
        self._write(f"expect {contributions}")

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        first = super().enter(generation, round_number, contributions, lost_servers)
        self._write(f"enter {generation} {round_number} {contributions}")
        return first

    def spread(self, servers: Sequence[int]) -> None:
        super().spread(servers)
        self._write(f"spread {_words(servers)}")

    def take(self, server: int, answer: Answer) -> None:
        super().take(server, answer)
        number, piece = answer.key
        at = f"{server} {number} {piece} {answer.round} {answer.generation}"
        self._write(f"take {at} {self._recorder.sum(answer.values)}")
        if self._frozen:  # the model does not ask then
            self._write("wait", ["-"])

    def freeze(self) -> SumProgress:
        self._write("freeze")
        return super().freeze()

    def status(self) -> SumProgress:
        found = super().status()
        missing = (f"{number}/{pieces}" for number, pieces in found.missing.items())
        self._write("status", [str(found.first_incomplete), *missing])
        return found

    def unanswered(self) -> frozenset[int]:
        servers = super().unanswered()
        self._write("unanswered", map(str, sorted(servers)))
        return servers

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        servers, sent = self.servers_without(lost_servers), len(self.outgoing)
        event = f"resume {generation} {round_number} {contributions} {_words(servers)}"
        try:
            super().resume(generation, round_number, contributions, lost_servers)
        except ValueError:
            self._write(event, ["refused"])
            raise
        self._write(event, self._sent(sent))

    def _write(self, event: str, effects: Iterable[str] = ()) -> None:
        self._recorder.write(self._component, event, effects)

    def _sent(self, begin: int) -> list[str]:
        pushes = sorted(self.outgoing[begin:], key=lambda sent: sent[1].key)
        return [f"{s}/{p.key[0]}/{p.key[1]}/{p.round}/{p.generation}/{p.contributions}" for s, p in pushes]


class _RecordedTable(RoundTable):
    def __init__(self, recorder: Recorder, component: int) -> None:
        super().__init__()
        self._recorder, self._component = recorder, component
        recorder.write(component, "table")

    def push(self, sender: int, push: Push) -> list[tuple[int, Answer]]:
        answers = super().push(sender, push)
        number, piece = push.key
        event = f"push {sender} {number} {piece} {push.round} {push.generation} {push.contributions}"
        effects = [f"{to}/{answer.round}/{answer.generation}" for to, answer in answers]
        if answers:
            effects.append(self._recorder.sum(answers[0][1].values))
        self._recorder.write(self._component, f"{event} {self._recorder.bit(push.value)}", effects)
        return answers

    def missing(self, workers: Collection[int]) -> frozenset[int]:
        found = super().missing(workers)
        self._recorder.write(self._component, f"missing {_words(sorted(workers))}", map(str, sorted(found)))
        return found


def _words(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
