"""Reads a real run back, decision by decision, for calibration and replay.

The source is a run folder or a recording. A recording is one compressed JSON-lines file: a first line with the
configuration, then the lines of the run folder about windows, evaluations, decisions and links.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from pydantic import ValidationError

from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.config.load import load_recorded_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.messages import LinkView, Plan, ServerView, WindowRecord
from dynamix_ps.policy.base import View, largest_total, reference_batch
from dynamix_ps.run_record.evaluations import Evaluation, evaluation_of
from dynamix_ps.run_record.json_lines import LONGEST_BYTES, UNUSABLE, Line, line_in
from dynamix_ps.run_record.role_files import RoleFiles
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.values import filled

SUFFIX = ".jsonl.gz"
_LARGEST_BYTES = 512 << 20  # unpacked; a day of windows of eight workers takes 100 MB
_KINDS = frozenset({"window", "evaluation", "links", "adopted", *DECISIONS})


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The view of the arbitrator when a window closed, and the batch sizes after its decision."""

    view: View
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run: decisions in order of time, and evaluations of the test set with seconds since training began."""

    name: str
    config: Config
    decided: tuple[RecordedDecision, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def n_workers(self) -> int:
        return len(self.config.cluster.workers)

    @property
    def complete(self) -> Iterator[View]:
        """The windows that every worker reported and that contain no stall."""
        for one in self.decided:
            if all(record is not None and not record.flagged for record in one.view.records):
                yield one.view


def read_run(path: Path) -> RecordedRun:
    """Read a run folder, or a recording that `write_recording` made.

    Raises:
        UsageError: the path is neither, the file is damaged, or the run has no decided window.
    """
    if path.is_dir():
        folder = RunFolder.open(path)
        config = load_recorded_config(folder.config_file)
        try:
            run = _run(folder.path.name, config, _lines_of(folder))
        except UNUSABLE as error:
            raise UsageError(f"{path}: a line of the run is damaged ({type(error).__name__}: {error})") from error
    else:
        run = _read_recording(path)
    if not run.decided:
        raise UsageError(
            f"{path}: got a run without a decided window, expected at least one; "
            "train longer, and with `mode: adapt` or `observe`"
        )
    return run


def write_recording(folder: RunFolder, file: Path) -> None:
    """Write a recording of a run folder. The name of the file becomes the name of the run.

    The same run gives the same bytes. The variables under `env:` are left out, as they may hold passwords and
    recordings are passed on.

    Raises OSError if it cannot be written.
    """
    recorded = load_recorded_config(folder.config_file)
    config = recorded.model_dump(mode="json", exclude_defaults=True, exclude={"env"})
    head = {"kind": "run", "name": file.name.removesuffix(SUFFIX), "config": config}
    text = "".join(json.dumps(line) + "\n" for line in (head, *_lines_of(folder)))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def _lines_of(folder: RunFolder) -> Iterator[Line]:
    for _, _, line in RoleFiles(folder).read():
        if line["kind"] in _KINDS or (line["kind"] == "started" and "rank" in line):
            yield line


def _read_recording(file: Path) -> RecordedRun:
    try:
        head, *lines = _unpacked(file)
        config = Config.model_validate_json(json.dumps(head["config"]))
        policy = config.policy.without_foreign_keys()
        return _run(str(head["name"]), config.model_copy(update={"policy": policy}), lines)
    except FileNotFoundError as error:
        raise UsageError(f"{file}: no such file; give a run folder such as runs/latest, or a *{SUFFIX}") from error
    except (OSError, EOFError, zlib.error, ValidationError, *UNUSABLE) as error:
        raise UsageError(
            f"{file}: not a recording, or damaged ({type(error).__name__}: {error}); "
            f"expected a run folder, or a *{SUFFIX} that was made from one"
        ) from error


def _unpacked(file: Path) -> Iterator[Line]:
    """The lines of a recording. Raises ValueError at the first byte too much: a small file may unpack to any size."""
    left = _LARGEST_BYTES
    with gzip.open(file) as packed:
        while raw := packed.readline(min(left, LONGEST_BYTES)):
            left -= len(raw)
            if not raw.endswith(b"\n") or left <= 0:
                raise ValueError(
                    f"it ends within a line, or has a line of {LONGEST_BYTES:,} or {_LARGEST_BYTES:,} bytes in all"
                )
            line = line_in(raw)
            if line is None:
                raise ValueError(f"a line that no run writes: {raw[:60]!r}")
            yield line


@dataclass(slots=True)
class _Window:
    """The lines of a run about one window."""

    records: dict[int, WindowRecord] = field(default_factory=dict)
    decision: Line | None = None
    links: tuple[LinkView, ...] = ()
    servers: tuple[ServerView, ...] = ()


def _run(name: str, config: Config, lines: Iterable[Line]) -> RecordedRun:
    """Build the run from its lines; the lines of workers and journal may come in any order."""
    windows: dict[int, _Window] = {}
    evaluated: list[Line] = []
    adopted: list[Line] = []
    started: dict[int, Line] = {}
    for line in lines:
        kind = line["kind"]
        if kind == "started":
            started.setdefault(line["rank"], line)
        elif kind == "adopted":
            adopted.append(line)
        elif kind == "evaluation":
            evaluated.append(line)
        elif "window" in line:
            window = windows.setdefault(line["window"], _Window())
            if kind == "window":
                window.records.setdefault(line["rank"], filled(WindowRecord, line))
            elif kind == "links":
                window.links = tuple(filled(LinkView, link) for link in line["links"])
                window.servers = tuple(filled(ServerView, server) for server in line["servers"])
            else:
                window.decision = line
    return RecordedRun(
        name=name,
        config=config,
        decided=tuple(_decisions(config, started, windows, adopted)),
        evaluations=tuple(evaluation_of(line, started[0]["time_s"]) for line in evaluated if 0 in started),
    )


def _decisions(
    config: Config, started: Mapping[int, Line], windows: Mapping[int, _Window], adopted: Sequence[Line]
) -> Iterator[RecordedDecision]:
    """`adopted`: plans that the arbitrator took over from workers, or made when one had come or gone."""
    ranks = range(len(config.cluster.workers))
    if not started.keys() >= set(ranks) - config.later:  # not every worker began to train
        return
    # a static policy may set its own first sizes
    plan = Plan(0, tuple(0 if rank in config.later else started[rank]["batch_size"] for rank in ranks))
    for number_of, window in sorted(windows.items()):
        if window.decision is None:
            continue
        decided_s = window.decision["time_s"]
        plans = (_plan_of(line) for line in adopted if line["time_s"] < decided_s)
        plan = max([plan, *plans], key=attrgetter("version"))
        known = set(window.decision.get("reported", ranks))  # the decision did not know later records
        records = tuple(window.records.get(rank) if rank in known else None for rank in ranks)
        view = View(
            number_of,
            plan,
            tuple(config.bounds(rank) if _is_there(config, plan, rank) else (0, 0) for rank in ranks),
            records,
            window.links,
            window.servers,
            config.lr_rule,
            reference_batch(records, config.initial_sizes()),
            largest_total=largest_total(records),
            ring=config.data_plane.is_ring,
        )
        if window.decision["kind"] == "plan":
            plan = _plan_of(window.decision)
        yield RecordedDecision(view, plan.batch_sizes)


def _is_there(config: Config, plan: Plan, rank: int) -> bool:
    """Whether somebody is in this place, as the arbitrator has it (places.py)."""
    return plan.batch_sizes[rank] > 0 or not (config.bounds(rank)[0] or rank in config.later)


def _plan_of(line: Line) -> Plan:
    return Plan(line["version"], tuple(line["batch_sizes"]))
