"""Events in any order for one exchange or one table: all that the reference plane does not refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from tests.models.membership.pieces import Answer, Key, ProtocolError, Push
from tests.models.membership.recorded import Recorder

_SLOTS = 2


def play(seed: int, recorder: Recorder) -> None:
    """An exchange and a table, which do not know each other."""
    rng = random.Random(seed)
    pieces = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    for events, count in ((_of_exchange(rng, recorder, pieces), 300), (_of_table(rng, recorder, pieces), 100)):
        for _ in range(count):
            with suppress(ProtocolError, ValueError):
                rng.choice(events)()


def _key(rng: random.Random, pieces: list[int]) -> Key:
    number = rng.randrange(len(pieces))
    return number, rng.randrange(pieces[number])


def _of_exchange(rng: random.Random, recorder: Recorder, pieces: list[int]) -> list[Callable[[], object]]:
    exchange = recorder.exchange(0, pieces, 2, _SLOTS)
    to_push, sent, generation = set(range(len(pieces))), list[tuple[int, Push]](), 0

    def push(count: int = 1) -> None:
        for number in rng.sample(sorted(to_push), min(count, len(to_push))):
            to_push.discard(number)
            exchange.push(number, rng.random())

    def take() -> None:
        sent.extend(exchange.outgoing)
        exchange.outgoing.clear()
        if sent:
            server, push = sent.pop(rng.randrange(len(sent)))
            exchange.take(
                server, Answer(push.key, push.round, push.generation, frozenset({push.value, rng.randrange(5)}))
            )

    def resume() -> None:
        nonlocal generation
        first = exchange.status().first_incomplete + rng.choice((-1, 0, 0, 0, 0, 0, 1, 2))
        push(rng.randrange(4))
        lost = rng.sample(range(_SLOTS), rng.randrange(_SLOTS))
        generation += 1
        exchange.resume(generation - rng.randrange(2), first, rng.randint(1, 4), lost)

    def wait() -> None:
        if exchange.wait() is not None:
            to_push.update(range(len(pieces)))
            if rng.randrange(2):
                resume()

    def enter() -> None:
        nonlocal generation
        generation += 1
        exchange.enter(generation, exchange.status().first_incomplete + 2, rng.randint(1, 4), {rng.randrange(_SLOTS)})

    others = [
        exchange.freeze,
        exchange.unanswered,
        exchange.status,
        resume,
        resume,
        lambda: exchange.expect(rng.randint(1, 4)),
    ]
    return [*[push] * 2, *[take] * 12, *[wait] * 3, *others, enter if rng.random() < 0.2 else push]


def _of_table(rng: random.Random, recorder: Recorder, pieces: list[int]) -> list[Callable[[], object]]:
    table = recorder.table()
    at = [0, 0]  # generation and round

    def push() -> None:
        generation, round_number = max(0, at[0] - rng.randrange(3)), max(0, at[1] + rng.randint(-1, 1))
        contributions = 1 + (generation + round_number) % 3
        table.push(rng.randrange(3), Push(_key(rng, pieces), round_number, generation, contributions, rng.random()))

    def go_on() -> None:
        at[1] += 1

    def begin() -> None:
        at[0] += 1
        at[1] = max(0, at[1] + rng.randint(-1, 1))

    return [*[push] * 12, go_on, go_on, begin, lambda: table.missing(range(3))]
