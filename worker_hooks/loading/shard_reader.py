"""Reads the shards of one worker in a thread, some samples ahead of their use.

One thread reads all passes of a training, because processes that read for it end with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from dynamix_ps.errors import DynamixError
from worker_hooks.loading.script_errors import of_threads
from worker_hooks.sampling.shard_list import Piece
from worker_hooks.sampling.shards import ReadingReport

Open = Callable[[int], Iterator[Any]]  # the samples of a shard, by its number
Place = tuple[int, int]  # (piece, by its number among those given; sample in its shard)
_MOST_WANTED = 1 << 10


class ShardReader:
    """The samples of the pieces that this worker gets, one piece after the other.

    What `open_shard` and its iterators raise is raised again where the samples are needed, with the shard's name.
    """

    def __init__(
        self, open_shard: Open, name_of: Callable[[int], str], at_end: Callable[[], None] | None = None
    ) -> None:
        """`name_of`: a shard in an error message, by its number. `at_end`: called in the thread when it ends."""
        self._open, self._name_of, self._at_end = open_shard, name_of, at_end
        self._changed = threading.Condition()
        self._buffer: deque[tuple[Any, Place]] = deque()
        self._pieces: deque[Piece] = deque()  # given and not begun
        self._given = self._begun = 0  # pieces
        self._now: Place | None = None  # of the sample that is read next; none: nothing is left to read
        self._complete = self._samples = 0  # shards read to their end, and samples of them
        self._ahead = 0
        self._given_up = 0  # times
        self._error: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def give(self, pieces: Sequence[Piece]) -> None:
        """Read these pieces too."""
        if not pieces:
            return
        with self._changed:
            self._pieces += pieces
            self._given += len(pieces)
            if self._now is None:
                self._now = self._begun, pieces[0].offset
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dynamix-shards", daemon=True)
            self._thread.start()

    def read_ahead(self, samples: int) -> None:
        """From now on keep so many samples ready."""
        with self._changed:
            self._ahead = samples
            self._changed.notify_all()

    def wait_for(self, samples: int) -> None:
        """Wait until so many samples are ready, or all pieces are read. `read_ahead` asks for at least as many."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._now is None or len(self._buffer) >= samples)
            if self._error is not None and len(self._buffer) < samples:
                raise self._error

    def take(self, samples: int) -> list[tuple[Any, Place]]:
        """The next samples, each with its place. Takes no more than are ready."""
        with self._changed:
            taken = [self._buffer.popleft() for _ in range(samples)]
            self._changed.notify_all()
        return taken

    def put_back(self, taken: Sequence[tuple[Any, Place]]) -> None:
        """These samples, which were taken last, come again."""
        with self._changed:
            self._buffer.extendleft(reversed(taken))

    def report(self) -> ReadingReport:
        with self._changed:
            ready = len(self._buffer)
            done, offset = self._buffer[0][1] if ready else self._now or (self._given, 0)
            wants = 0
            if self._now is None and self._error is None:
                lacking = max(self._ahead - ready, 1)
                mean = self._samples // self._complete if self._complete else lacking
                wants = min(-(-lacking // max(mean, 1)), _MOST_WANTED)
            return ReadingReport(ready, wants, done, offset)

    def begin_pass(self) -> None:
        """Drop what is left of the pass before, and count pieces from 0 again."""
        with self._changed:
            self._given = 0
            self.give_up()

    def give_up(self) -> None:
        """Drop what is read and what is to be read."""
        with self._changed:
            self._buffer.clear()
            self._pieces.clear()
            self._begun, self._now = self._given, None
            self._given_up += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, which may be in a sample of the script's."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._read_all()
        finally:
            if self._at_end is not None:
                self._at_end()

    def _read_all(self) -> None:
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._pieces)
                if self._closed:
                    return
                piece, number, given_up = self._pieces.popleft(), self._begun, self._given_up
                self._begun += 1
                self._now = number, piece.offset
            try:
                self._read(piece, number, given_up)
            except BaseException as error:
                with self._changed:
                    self._error = _named(error, self._name_of(piece.shard))
                    self._changed.notify_all()
                return

    def _read(self, piece: Piece, number: int, given_up: int) -> None:
        """All samples of this piece, unless it is given up."""
        offset = piece.offset
        for sample in islice(self._open(piece.shard), offset, None):
            with self._changed:
                if given_up != self._given_up or self._closed:
                    return
                self._buffer.append((sample, (number, offset)))
                offset += 1
                self._now = number, offset
                self._changed.notify_all()
                self._changed.wait_for(self._may_go_on(given_up))
        with self._changed:
            if given_up == self._given_up:
                self._complete += 1
                self._samples += offset
                self._now = (number + 1, self._pieces[0].offset) if self._pieces else None
                self._changed.notify_all()

    def _may_go_on(self, given_up: int) -> Callable[[], bool]:
        return lambda: len(self._buffer) < self._ahead or given_up != self._given_up or self._closed


def _named(error: BaseException, shard: str) -> BaseException:
    """The script's error, which says in which shard it was raised."""
    error = of_threads(error, "the stream", "open it where it is read, in __iter__")
    if isinstance(error, DynamixError):
        return type(error)(f"shard {shard}: {error}")
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"while reading shard {shard}")
    return error
