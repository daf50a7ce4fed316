"""A run while it goes on: a table that is redrawn on a terminal, a line every ten seconds anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.text import Text

from dynamix_ps.report.live.cells import bar_legend, or_dash
from dynamix_ps.report.live.events import NOTABLE, ROUTINE, describe
from dynamix_ps.report.live.progress import evaluated, figures, plain_line, progress_bar, times
from dynamix_ps.report.live.tables import notes, servers_table, workers_table
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import Degradation
from dynamix_ps.run_record.run_state import RunState

PLAIN_EVERY_S = 10.0
EVENTS_SHOWN = 4
DEGRADED_SHOWN = 3


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
        self._troubles_told: set[_Subject] = set()
        self._line_told: float | None = None
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._line_told = None  # the last state is due now
        self.refresh()
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Show the state as it is now."""
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            return
        for words in self._fresh_words():
            self._print(f"event {words}")
        now = self._clock()
        if self._line_told is None or now - self._line_told >= PLAIN_EVERY_S:
            self._plain_line()

    def render(self) -> RenderableType:
        """Header, one row per worker and server, where the values come from, degradations, the last events.

        It has at most as many lines as the terminal. Where that is too few, events go first, then legends, then
        servers, then workers.
        """
        state, console = self._state, self._console
        ascii_only = console.options.ascii_only
        cut: OverflowMethod = "crop" if ascii_only else "ellipsis"
        header = self._header(cut)
        degraded = [Text(f"degraded: {entry}", overflow=cut, no_wrap=True, style="yellow") for entry in self._lasting()]
        told = [
            Text(describe(event), overflow=cut, no_wrap=True, style=_style(event)) for event in self._shown_events()
        ]
        legends: list[RenderableType] = [Text(), bar_legend(ascii_only), notes(state)]
        servers: list[RenderableType] = [Text(), servers_table(state)] if state.servers else []
        room = console.height - 1 - len(header) - len(degraded) - 2  # the last line stays free; gap and head of a table
        rows, of_servers = len(state.workers), 2 + len(state.serving) if servers else 0
        legends = legends if room >= rows + of_servers + len(legends) else []
        servers = servers if room >= rows + of_servers else []
        room -= len(legends) + (of_servers if servers else 0)
        shown = rows if rows <= room else max(room - 1, 1)
        more = [Text(f"and {rows - shown:,} more workers", style="dim")] if shown < rows else []
        table = workers_table(state, console.width, ascii_only, shown)
        told = told[-(room - rows) :] if room > rows else []
        return Group(*header, Text(), table, *more, *servers, *legends, *degraded, *told)

    def _lasting(self) -> list[Degradation]:
        """What works less well than asked for right now, one entry for all roles that say the same."""
        entries = self._state.degradations.values()
        return [entry for entry in entries if entry.open_sources and entry.what != "stall"][-DEGRADED_SHOWN:]

    def _shown_events(self) -> list[Line]:
        """The last events worth telling: the newest plan, and what several roles say counts once."""
        newest: dict[object, Line] = {}
        for number, event in enumerate(self._state.events):
            if event["kind"] not in ROUTINE | {"degraded"}:
                subject = event["kind"] if event["kind"] == "plan_applied" else _subject(event) or number
                newest.pop(subject, None)
                newest[subject] = event
        return list(newest.values())[-EVENTS_SHOWN:]

    def _header(self, cut: OverflowMethod) -> list[Text]:
        """A line each: name, how far the run is, figures, what is out of the ordinary, where Prometheus answers."""
        state, arbitrator = self._state, self._state.arbitrator
        elapsed_s = self._clock() - self._began
        lines = [Text(f"{state.run} ({state.policy})", style="bold")]
        bar = progress_bar(state, self._console.options.ascii_only)
        far = Text("  ".join((times(state, elapsed_s), *evaluated(state))))
        lines.append(Text("  ").join([bar, far]) if bar else far)
        sizes = (f"plan {arbitrator.plan_version}", f"global batch {or_dash(state.workers.global_batch)}")
        lines.append(Text("  ".join([*figures(state), *sizes])))
        unusual = []
        if arbitrator.safety_net:
            unusual.append(f"safety net: {arbitrator.safety_net}")
        if state.membership.too_few:
            unusual.append(f"waits for workers: {state.membership.too_few}")
        lines += [Text(words, style="yellow") for words in unusual]
        if arbitrator.prometheus:
            lines.append(Text(f"prometheus: {arbitrator.prometheus}", style="dim"))
        for line in lines:
            line.no_wrap, line.overflow = True, cut
        return lines

    def _fresh_words(self) -> list[str]:
        """Notable events since the last call, oldest first; what has already left the state's memory is gone.

        The same trouble of several roles is told once, until it is over.
        """
        fresh = min(self._state.n_events - self._events_told, len(self._state.events))
        self._events_told = self._state.n_events
        newest = list(self._state.events)[len(self._state.events) - fresh :]
        words = (self._words(event) for event in newest if event["kind"] in NOTABLE)
        return list(dict.fromkeys(text for text in words if text))

    def _words(self, event: Line) -> str:
        """An event in words; empty if another role has told the same."""
        subject = _subject(event)
        if subject is None:
            return describe(event)
        if subject in self._troubles_told:
            return ""
        over = {told for told in self._troubles_told if told.what == subject.what and told.kind != subject.kind}
        self._troubles_told = (self._troubles_told - over) | {subject}
        entry = self._state.degradations.get(subject.what)
        return f"degraded: {entry}" if entry and subject.kind == "degraded" else describe(event)

    def _plain_line(self) -> None:
        line = plain_line(self._state, self._clock() - self._began)
        if line:
            self._print(line)
            self._line_told = self._clock()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Subject(NamedTuple):
    """What a role says when something works less well, or works again."""

    kind: str
    what: str
    detail: str


def _subject(event: Line) -> _Subject | None:
    if event["kind"] not in ("degraded", "recovered"):
        return None
    return _Subject(event["kind"], str(event.get("what")), str(event.get("detail")))


def _style(event: Line) -> str:
    return "bold red" if event["kind"] == "failed" else "yellow" if event["kind"] in NOTABLE else "dim"
