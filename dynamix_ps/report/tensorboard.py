"""TensorBoard events of a run, written during the run: one folder per worker and server, and one for the cluster.

So a chart shows one curve per worker. Steps are iterations; wall times are those of the run's records. Unknown values
are left out.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynamix_ps.field_table import FieldTable, Scope
from dynamix_ps.messages import LINK, SERVER, SYSTEM, WINDOW
from dynamix_ps.run_record.json_lines import UNUSABLE, Line
from dynamix_ps.run_record.run_state import RunState
from dynamix_ps.run_record.values import number, ratio

GLOBAL = "global"  # the folder of the cluster
NOT_INSTALLED = "matplotlib and tensorboardX, which draw a run, are not installed; pip install 'dynamix-ps[plots]'"


def charted(table: FieldTable, scope: Scope | None = None) -> tuple[str, ...]:
    """The names of the numbers with a chart, of one scope or of both."""
    fields = (field for field in table.values() if field.is_number and field.metric.chart)
    return tuple(field.name for field in fields if scope in (None, field.metric.scope))


_OWN = charted(WINDOW, "worker")
_SHARED = charted(WINDOW, "cluster")  # taken from the lines of rank 0
_LINK = charted(LINK)
_SERVER = charted(SERVER)
_SYSTEM = charted(SYSTEM)
_DECISIONS = ("plan", "kept", "observed")

Scalars = Mapping[str, float]


class TensorBoard:
    """Event files below `directory`, which need not exist yet; None: nothing is written.

    Never raises: the first failure (no package, disk full) calls `on_failure` and ends the writing.
    """

    def __init__(self, directory: Path | None, on_failure: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_failure = on_failure
        self._writers: dict[str, Any] = {}
        with self._guarded() as on:
            if on:
                with _torch_hidden():
                    self._events = importlib.import_module("tensorboardX.event_file_writer")
                self._messages = importlib.import_module("tensorboardX.proto.event_pb2")
                self._summaries = importlib.import_module("tensorboardX.proto.summary_pb2")

    def add(self, line: Line, state: RunState) -> None:
        """Write the scalars of a line that `state` has accepted. Lines without a step get the state's iteration.

        A line of an unknown form has no scalars.
        """
        try:
            found = list(_scalars(line, state)) if self._directory else []
            time_s = float(line["time_s"]) if found else math.nan
        except UNUSABLE:
            return
        with self._guarded():
            for name, step, scalars in found:
                known = {tag: value for tag, value in scalars.items() if math.isfinite(value)}
                if known:
                    self._write(name, step, time_s, known)

    def flush(self) -> None:
        """Make what was added visible to readers."""
        with self._guarded():
            for writer in self._writers.values():
                writer.flush()

    def close(self) -> None:
        with self._guarded():
            for writer in self._writers.values():
                writer.close()
        self._directory = None

    @contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Yields whether to write. An exception inside ends the writing."""
        try:
            yield self._directory is not None
        except Exception as error:  # a failing chart must not end a run
            self._directory = None
            self._writers.clear()
            failed = f"no charts from here on: {type(error).__name__}: {error}"
            self._on_failure(NOT_INSTALLED if isinstance(error, ImportError) else failed)

    def _write(self, name: str, step: int, time_s: float, scalars: Scalars) -> None:
        writer = self._writers.get(name)
        if writer is None:
            assert self._directory is not None
            folder = self._directory / name
            folder.mkdir(parents=True, exist_ok=True)
            writer = self._writers[name] = self._events.EventsWriter(str(folder / "events"))
        values = [self._summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        summary = self._summaries.Summary(value=values)
        writer.write_event(self._messages.Event(wall_time=time_s, step=step, summary=summary))


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Import tensorboardX as where there is no torch: it needs none for scalars, and importing torch takes seconds."""
    hide = "torch" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hide:
            del sys.modules["torch"]


def _scalars(line: Line, state: RunState) -> Iterator[tuple[str, int, Scalars]]:
    """(folder, step, values by tag) of a line."""
    kind, iteration = line["kind"], state.workers.iteration
    if kind == "window":
        step = line["first_iteration"] + line["iterations"]
        own = _named("worker", _OWN, line)
        for name in ("samples", "units"):
            own[f"worker/{name}_per_s"] = ratio(number(line.get(name)), number(line["duration_s"]))
        yield f"worker-{line['rank']}", step, own
        if line["rank"] == 0:
            yield (
                GLOBAL,
                step,
                _named("global", _SHARED, line) | {"global/noise_scale": state.progress.noise.value.scale},
            )
    elif kind == "links":
        for link in line["links"]:
            yield f"worker-{link['rank']}", iteration, _named("link", _LINK, link)
        for server in line["servers"]:
            machine = _named("server", _SYSTEM, server.get("system", {}))
            yield server["name"], iteration, _named("server", _SERVER, server) | machine
    elif kind == "evaluation":
        newest = state.progress.evaluations[-1]  # of this line
        yield GLOBAL, newest.iteration, {f"global/test/{name}": value for name, value in newest.values.items()}
    elif kind in _DECISIONS:
        decision = _named("global", ("decision_ms",), line) | _named("ppo", ("reward", "fallback"), line)
        yield GLOBAL, iteration, decision | {"global/batch_size": float(sum(line["batch_sizes"]))}
    elif kind == "update":
        diagnostics = {f"ppo/{key}": float(v) for key, v in line.items() if isinstance(v, (int, float))}
        diagnostics.pop("ppo/time_s", None)
        yield GLOBAL, iteration, diagnostics


def _named(group: str, names: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{group}/{name}": number(values.get(name)) for name in names}
