"""The arbitrator's journal: one JSON object per line, appended. A restarted arbitrator reads it back.

The run's recorder reads the same file. The arbitrator writes a decision to disk (fsync) before it publishes the plan,
so a restarted arbitrator knows every plan that a worker holds.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamix_ps.messages import Plan
from dynamix_ps.run_record.json_lines import KEPT_BYTES, UNUSABLE, JsonLinesTail, plain

logger = logging.getLogger("dynamix.arbitrator")

DECISIONS = ("plan", "kept", "observed")  # kinds that close a window


@dataclass(frozen=True, slots=True)
class Resumed:
    """What earlier arbitrators of this run journaled. `plan` is None if they published no plan."""

    plan: Plan | None = None
    window: int = -1  # the newest decided window
    newest_version: int = 0
    decisions: int = 0
    starts: int = 0
    retired: frozenset[tuple[int, str]] = frozenset()  # incarnations that were replaced, or are lost


class Journal:
    """An append-only file. Writing never raises: a full disk is logged once, and the service goes on.

    What the disk does not take is kept, and written with a later line.
    """

    def __init__(self, file: Path, now_s: Callable[[], float] = time.time) -> None:
        """`now_s`: unix time. Raises OSError if the file cannot be opened."""
        self._now_s = now_s
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        torn = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
        self._kept = b"\n" if torn else b""  # ends a torn line; readers skip it
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._failed = False

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """Append one line. With `sync`, wait until it is on disk. NaN is written as null."""
        text = _as_json({"kind": kind, "time_s": self._now_s(), **fields})
        line = text.encode() + b"\n"
        if len(self._kept) <= KEPT_BYTES:
            self._kept += line
        try:
            while self._kept:
                self._kept = self._kept[os.write(self._descriptor, self._kept) :]
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            if not self._failed:
                logger.error(
                    "cannot write %s: %s; decisions go on, but a restart will not know them", self._file, error
                )
            self._failed = True

    def close(self) -> None:
        os.close(self._descriptor)


def _as_json(line: Mapping[str, Any]) -> str:
    """One line of JSON. The encoder takes most lines as they are; only the others are converted first."""
    try:
        return json.dumps(line, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(plain(line), allow_nan=False)


def replay(file: Path) -> Resumed:
    """Read a journal back. Torn and unknown lines are skipped.

    Raises OSError if the file exists but cannot be read.
    """
    plan: Plan | None = None
    window, newest_version, decisions, starts = -1, 0, 0, 0
    incarnation: dict[int, str] = {}
    retired: set[tuple[int, str]] = set()
    tail = JsonLinesTail(file)
    lines = tail.read() + tail.rest()
    if tail.damaged:
        logger.warning("%s: %d damaged lines are skipped (a crash cuts a line off)", file, tail.damaged)
    for line in lines:
        kind = line["kind"]
        try:
            if kind == "started":
                starts += 1
            elif kind == "registered":
                rank, name = int(line["rank"]), str(line["incarnation"])
                if incarnation.get(rank, name) != name:
                    retired.add((rank, incarnation[rank]))
                incarnation[rank] = name
            elif kind == "lost" and line["role"] == "worker" and (rank := int(line["slot"])) in incarnation:
                retired.add((rank, incarnation[rank]))
            elif kind == "adopted":
                plan = _newer(plan, _plan(line))
                newest_version = max(newest_version, plan.version)
            elif kind in DECISIONS:
                decided, version = int(line["window"]), int(line["version"])
                if kind == "plan":
                    plan = _newer(plan, _plan(line))
                decisions += 1
                window = max(window, decided)
                newest_version = max(newest_version, version)
        except UNUSABLE:
            logger.warning("%s: a line of kind %r is incomplete and skipped", file, kind)
    return Resumed(plan, window, newest_version, decisions, starts, frozenset(retired))


def _newer(plan: Plan | None, other: Plan) -> Plan:
    """The newer plan. A decision's line may follow that of a newer plan, made while the decision was being written."""
    return other if plan is None or other.version >= plan.version else plan


def _plan(line: Mapping[str, Any]) -> Plan:
    sizes = tuple(int(size) for size in line["batch_sizes"])
    return Plan(int(line["version"]), sizes)
