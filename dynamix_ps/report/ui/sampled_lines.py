"""The lines of a run for one page: all of a short run, evenly spaced ones of a long run. What is parsed is bounded."""

from __future__ import annotations

import contextlib
import heapq
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dynamix_ps.run_record.json_lines import LONGEST_BYTES, UNUSABLE, Line, line_in
from dynamix_ps.run_record.role_files import RoleLine
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.values import number

MOST_BYTES = 4 << 20  # of the windows of all workers (chosen by us)
FEWEST_BYTES = 16 << 10  # of those of one worker
_HEAD_BYTES = 200  # in which source, kind and window stand
_KIND = re.compile(rb'"kind": "(\w+)"')
_WINDOW = re.compile(rb'"window": (\d+)')
_OF_LAUNCHER = b'"source": "launcher"'
_LEFT_OUT = frozenset({b"links", b"kept", b"update", b"role", b"paused", b"resumed"})  # frequent; no page shows them
_TIMES = ("duration_s", "compute_s", "push_pull_s", "wait_s", "input_s", "outside_s")
_SUMS = ("iterations", "samples", "global_samples", "units", *_TIMES)


class Sampled(NamedTuple):
    """Lines in order of time. Of `stride` windows one is there, with their sums in place of its own."""

    lines: list[RoleLine]
    stride: int


def sampled(folder: RunFolder) -> Sampled:
    """What a page needs of a run, which may go on."""
    workers, roles = sorted(folder.workers_dir.glob("worker-*.jsonl")), sorted(folder.roles_dir.glob("*.jsonl"))
    whole, most = sum(file.stat().st_size for file in workers), max(MOST_BYTES, FEWEST_BYTES * len(workers))
    stride, of_one = 1, most // max(len(workers), 1)
    while whole > most * stride:  # a power of two: the windows of one page are those of the next, and of all workers
        stride *= 2
    named = [("arbitrator", folder.journal_file), *((file.stem, file) for file in (*workers, *roles))]
    streams = [[RoleLine(source, file, line) for line in _lines(file, stride, of_one)] for source, file in named]
    own = _lines(folder.events_file, stride, of_one, _OF_LAUNCHER)  # beside what it repeats of other roles
    streams.append([RoleLine("launcher", folder.events_file, line) for line in own])
    return Sampled(list(heapq.merge(*streams, key=lambda told: number(told.line.get("time_s", 0.0)))), stride)


class _Spaced:
    """Evenly spaced lines of one kind, with their places in the file: every second one goes when there are too many."""

    def __init__(self, most_bytes: int) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self._room, self._most = most_bytes, most_bytes
        self._seen, self._stride = 0, 1

    def add(self, place: int, raw: bytes) -> None:
        if self._seen % self._stride == 0:
            self.lines.append((place, raw))
            self._room -= len(raw)
            if self._room < 0:
                self.lines, self._stride = self.lines[::2], 2 * self._stride
                self._room = self._most - sum(len(raw) for _, raw in self.lines)
        self._seen += 1


def _lines(file: Path, stride: int, most_bytes: int, marked: bytes = b"") -> Iterator[Line]:
    """Lines of one file that begin with this mark, in their order. Those that are left out are not even parsed."""
    windows: list[tuple[int, bytes]] = []
    others: defaultdict[bytes, _Spaced] = defaultdict(lambda: _Spaced(most_bytes))
    for place, raw in enumerate(_raw_lines(file)):
        kind = found[1] if (found := _KIND.search(raw, 0, _HEAD_BYTES)) else b""
        if kind in _LEFT_OUT or raw.find(marked, 0, _HEAD_BYTES) < 0:
            continue
        if kind == b"window" and (of := _WINDOW.search(raw, 0, _HEAD_BYTES)):
            if (int(of[1]) + 1) % stride == 0:
                windows.append((place, raw))
        else:
            others[kind].add(place, raw)
    for _, raw in sorted([*windows, *(line for kind in others.values() for line in kind.lines)]):
        if (line := line_in(raw)) is not None:
            yield _of_all(line, stride) if stride > 1 and line["kind"] == "window" else line


def _raw_lines(file: Path) -> Iterator[bytes]:
    """The complete lines of a file; none where there is no file."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        for raw in iter(partial(opened.readline, LONGEST_BYTES), b""):
            if raw.endswith(b"\n"):
                yield raw


def _of_all(line: Line, stride: int) -> Line:
    """A window as if it were all those that end with it; as it is where it is damaged."""
    try:
        sums = {name: stride * line[name] for name in _SUMS if line.get(name) is not None}
        return line | sums | {"first_iteration": line["first_iteration"] - (stride - 1) * line["iterations"]}
    except UNUSABLE:
        return line
