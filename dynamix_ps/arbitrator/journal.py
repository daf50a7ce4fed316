"""What a restarted arbitrator reads back from its journal.

The run's recorder reads the same file. The arbitrator writes a decision to disk (fsync) before it publishes the plan,
so a restarted arbitrator knows every plan that a worker holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamix_ps.messages import Plan
from dynamix_ps.run_record.json_lines import UNUSABLE, JsonLinesTail

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
