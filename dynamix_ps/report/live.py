"""The run as it goes: a table that renews itself on a terminal, plain `key=value` lines anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynamix_ps.report.model import TIME_PARTS, WorkerState
from dynamix_ps.report.state import RunState
from dynamix_ps.report.tail import Line

PLAIN_EVERY_S = 10.0
EVENTS_SHOWN = 4
BAR_WIDTH = 16
WIDE = 112  # columns from which on shares are shown as figures as well
_BAR = {"compute": "█", "push_pull": "▒", "wait": "░", "input": "·"}
_ASCII_BAR = {"compute": "#", "push_pull": "=", "wait": ".", "input": "-"}
_COLOUR = {"compute": "#56b4e9", "push_pull": "#e69f00", "wait": "#d55e00", "input": "#999999"}  # Okabe and Ito
_NOTABLE = frozenset(
    {
        "degraded",
        "recovered",
        "stall",
        "failed",
        "lease_lost",
        "lease_back",
        "rejected",
        "unreadable_line",
        "damaged_lines",
    }
)
_ROUTINE = frozenset(
    {"window", "plan", "kept", "plan_applied", "observed", "update", "evaluation"}
    | {"registered", "started", "left", "stopped"}
)


class LiveView:
    """Shows a RunState. Use as a context manager and call `refresh` after each poll of the recorder.

    On a terminal, what others print through `console` appears above the table. `clock` counts seconds.
    """

    def __init__(self, state: RunState, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._console = console
        self._clock = clock
        self._began = clock()
        self._events_told = state.n_events
        self._plan_told = 0
        self._line_told: float | None = None
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line_told = None  # the last word is due now
        self.refresh()
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Show the state as it is now."""
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            return
        for event in self._fresh_events():
            self._print(f"event {describe(event)}")
        now = self._clock()
        due = self._line_told is None or now - self._line_told >= PLAIN_EVERY_S
        if due or self._state.plan_version > self._plan_told:
            self._plain_line()

    def render(self) -> RenderableType:
        """Header line, one row per worker, the last things worth telling."""
        state = self._state
        ascii_only = self._console.options.ascii_only
        cut: OverflowMethod = "crop" if ascii_only else "ellipsis"
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("worker", justify="right", no_wrap=True)
        table.add_column("batch", justify="right", no_wrap=True)
        table.add_column("change", no_wrap=True)
        table.add_column("samples/s", justify="right", no_wrap=True)
        table.add_column("time", no_wrap=True)
        wide = self._console.width >= WIDE
        if wide:
            table.add_column("compute / push-pull / wait", justify="right", no_wrap=True)
        table.add_column("loss", justify="right", no_wrap=True)
        table.add_column("acc.", justify="right", no_wrap=True)
        table.add_column("state", overflow=cut, no_wrap=True)
        for rank in sorted(state.workers):
            worker = state.workers[rank]
            split = [" / ".join(f"{_percent(worker.shares.get(part)):>4}" for part in TIME_PARTS[:3])] if wide else []
            table.add_row(
                str(rank),
                _or_dash(worker.batch_size),
                _change(worker, ascii_only),
                _figure(worker.samples_per_s, ",.0f"),
                _bar(worker, ascii_only),
                *split,
                _figure(worker.loss, ".3f"),
                _figure(worker.accuracy, ".3f"),
                _phase(worker),
            )
        glyphs = _ASCII_BAR if ascii_only else _BAR
        legend = Text("time: ", style="dim")
        for part in TIME_PARTS:
            legend.append(f"{glyphs[part]} {part.replace('_', '-')}  ", style=_COLOUR[part])
        notable = [event for event in state.events if event["kind"] not in _ROUTINE][-EVENTS_SHOWN:]
        told = [Text(describe(event), overflow=cut, no_wrap=True, style=_style(event)) for event in notable]
        return Group(self._header(), Text(), table, Text(), legend, *told)

    def _header(self) -> Text:
        state = self._state
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        parts = [f"iteration {state.iteration:,}", f"plan {state.plan_version}"]
        parts.append(f"global batch {_or_dash(state.global_batch)}")
        if state.evaluations:
            parts.append(f"test accuracy {state.evaluations[-1].accuracy:.4f}")
        parts.append(f"{minutes:02d}:{seconds:02d}")
        text = Text(f"{state.run} ({state.policy})", style="bold")
        return text.append("  " + "  ".join(parts), style="not bold")

    def _fresh_events(self) -> list[Line]:
        """Notable events since the last call, oldest first; what has already left the state's memory is gone."""
        fresh = min(self._state.n_events - self._events_told, len(self._state.events))
        self._events_told = self._state.n_events
        newest = list(self._state.events)[len(self._state.events) - fresh :]
        return [event for event in newest if event["kind"] in _NOTABLE]

    def _plain_line(self) -> None:
        state = self._state
        workers = [state.workers[rank] for rank in sorted(state.workers)]
        fields = {
            "elapsed_s": f"{self._clock() - self._began:.0f}",
            "iteration": str(state.iteration),
            "plan": str(state.plan_version),
            "policy": state.policy.replace(", ", "/"),
            "global_batch": _or_dash(state.global_batch),
            "batch": ",".join(_or_dash(worker.batch_size) for worker in workers),
            "samples_per_s": ",".join(_figure(worker.samples_per_s, ".0f") for worker in workers),
            "wait": ",".join(_figure(worker.shares.get("wait"), ".2f") for worker in workers),
            "loss": ",".join(_figure(worker.loss, ".3f") for worker in workers),
            "state": ",".join(worker.phase.replace(" ", "_").replace(",", "+") for worker in workers),
        }
        if state.evaluations:
            fields["test_accuracy"] = f"{state.evaluations[-1].accuracy:.4f}"
        self._print(" ".join(f"{key}={value}" for key, value in fields.items()))
        self._line_told = self._clock()
        self._plan_told = state.plan_version

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe(event: Line) -> str:
    """One line for people about an event."""
    rest = {key: value for key, value in event.items() if key not in ("kind", "source", "time_s", "rank")}
    if event["kind"] in ("degraded", "recovered"):
        detail = rest.get("detail")
        return f"{event.get('source')}: {event['kind']}: {rest.get('what')}" + (f": {detail}" if detail else "")
    values = " ".join(f"{key}={value}" for key, value in rest.items())
    about = f" of worker {event['rank']}" if event.get("source") == "arbitrator" and "rank" in event else ""
    return f"{event.get('source')}: {event['kind']}{about}" + (f": {values}" if values else "")


def _change(worker: WorkerState, ascii_only: bool) -> Text:
    """What the last plan did to this worker's batch size."""
    if worker.batch_size is None or worker.previous_batch_size in (None, worker.batch_size):
        return Text("")
    change = worker.batch_size - worker.previous_batch_size
    up, down = ("^", "v") if ascii_only else ("▲", "▼")
    return Text(f"{up} +{change}", style="bold") if change > 0 else Text(f"{down} {change}", style="bold")


def _bar(worker: WorkerState, ascii_only: bool) -> Text:
    """The parts of a window's time; widths are rounded so that the whole is BAR_WIDTH at most."""
    glyphs = _ASCII_BAR if ascii_only else _BAR
    bar, drawn, upto = Text(), 0, 0.0
    for part in TIME_PARTS:
        share = worker.shares.get(part, math.nan)
        upto += 0.0 if math.isnan(share) else share
        width = min(round(upto * BAR_WIDTH), BAR_WIDTH) - drawn
        bar.append(glyphs[part] * width, style=_COLOUR[part])
        drawn += width
    return bar.append(" " * (BAR_WIDTH - drawn))


def _phase(worker: WorkerState) -> Text:
    style = {"running": "", "finished": "green", "starting": "dim"}.get(worker.phase, "bold red")
    return Text(worker.phase, style=style)


def _style(event: Line) -> str:
    return "bold red" if event["kind"] == "failed" else "yellow" if event["kind"] in _NOTABLE else "dim"


def _figure(value: float | None, spec: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, spec)


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.0f} %"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
