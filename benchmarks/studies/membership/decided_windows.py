"""Whether decisions go on after something has happened to a job, by what the job itself has written."""

from __future__ import annotations

from collections.abc import Iterable

from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.run_folder import RunFolder

WITHIN = 2  # windows after it


def decisions_go_on(run: RunFolder, iteration: int) -> bool:
    """Whether they do after this iteration, and every rank has told each of its windows once."""
    return not undecided(run, [iteration]) and not told_twice(run)


def undecided(run: RunFolder, iterations: Iterable[int]) -> list[int]:
    """Those of these iterations after which none of the first WITHIN windows was decided."""
    lines = read_lines(run)
    begins = {line["window"]: line["first_iteration"] for line in lines if line["kind"] == "window"}
    decided = {line["window"] for line in lines if line["kind"] in DECISIONS}
    return [one for one in iterations if not decided.intersection(_after(begins, one))]


def _after(begins: dict[int, int], iteration: int) -> list[int]:
    """The first WITHIN windows that begin with `iteration` or later."""
    return sorted(window for window, first in begins.items() if first >= iteration)[:WITHIN]


def told_twice(run: RunFolder) -> list[tuple[int, int]]:
    """Ranks and numbers of windows that a rank has told more than once, or out of order."""
    newest: dict[int, int] = {}
    found = []
    for line in read_lines(run):
        if line["kind"] == "window":
            if line["window"] <= newest.get(line["rank"], -1):
                found.append((line["rank"], line["window"]))
            newest[line["rank"]] = line["window"]
    return found


def read_lines(run: RunFolder) -> list[Line]:
    """All that the workers and the arbitrator have written."""
    files = (*sorted(run.workers_dir.glob("*.jsonl")), run.journal_file)
    return [line for file in files for line in JsonLinesTail(file).read()]
