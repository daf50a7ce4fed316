"""A run while it goes on: a table that is redrawn on a terminal, plain `key=value` lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.text import Text

from dynamix_ps.report.live.cells import bar_legend, figure, or_dash, source
from dynamix_ps.report.live.events import NOTABLE, ROUTINE, describe
from dynamix_ps.report.live.tables import notes, servers_table, workers_table
from dynamix_ps.run_record.evaluations import ACCURACY, curves, main_names, shown
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import WorkerState
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
        self._plan_told = 0
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
        due = self._line_told is None or now - self._line_told >= PLAIN_EVERY_S
        if due or self._state.arbitrator.plan_version > self._plan_told:
            self._plain_line()

    def render(self) -> RenderableType:
        """Header, one row per worker and server, where the values come from, degradations, the last events."""
        state = self._state
        ascii_only = self._console.options.ascii_only
        cut: OverflowMethod = "crop" if ascii_only else "ellipsis"
        parts: list[RenderableType] = [self._header(), Text(), workers_table(state, self._console.width, ascii_only)]
        if state.servers:
            parts += [Text(), servers_table(state)]
        parts += [Text(), bar_legend(ascii_only), notes(state)]
        told = [
            Text(describe(event), overflow=cut, no_wrap=True, style=_style(event)) for event in self._shown_events()
        ]
        return Group(*parts, *self._degraded(), *told)

    def _degraded(self) -> list[Text]:
        """What works less well than asked for right now, one entry for all roles that say the same."""
        entries = self._state.degradations.values()
        lasting = [entry for entry in entries if entry.open_sources and entry.what != "stall"]  # a stall is an event
        return [Text(f"degraded: {entry}", style="yellow") for entry in lasting[-DEGRADED_SHOWN:]]

    def _shown_events(self) -> list[Line]:
        """The last events worth telling: the newest plan, and what several roles say counts once."""
        newest: dict[object, Line] = {}
        for number, event in enumerate(self._state.events):
            if event["kind"] not in ROUTINE | {"degraded"}:
                subject = event["kind"] if event["kind"] == "plan_applied" else _subject(event) or number
                newest.pop(subject, None)
                newest[subject] = event
        return list(newest.values())[-EVENTS_SHOWN:]

    def _header(self) -> Text:
        state, arbitrator = self._state, self._state.arbitrator
        parts = [f"iteration {state.workers.iteration:,}", f"plan {arbitrator.plan_version}"]
        parts.append(f"global batch {or_dash(state.workers.global_batch)}")
        parts += [f"test {name} {shown(name, value)}" for name, value in self._newest_values().items()]
        clock = [_clock_text(self._clock() - self._began)]
        if (to_go_s := state.progress.time_to_go_s) is not None:
            clock.append(f"about {_clock_text(to_go_s)} to go")
        if arbitrator.safety_net:
            clock.append(f"safety net: {arbitrator.safety_net}")
        if state.membership.too_few:
            clock.append(f"waits for workers: {state.membership.too_few}")
        text = Text(f"{state.run} ({state.policy})", style="bold")
        text.append("\n" + "  ".join(parts) + "\n" + "  ".join(clock), style="not bold")
        if arbitrator.prometheus:
            text.append(f"\nprometheus: {arbitrator.prometheus}", style="dim not bold")
        return text

    def _newest_values(self) -> dict[str, float]:
        """The newest accuracy where there is one, otherwise the newest of the first few named values."""
        newest = {name: curve.last for name, curve in curves(self._state.progress.evaluations).items()}
        return {name: newest[name] for name in main_names(newest)}

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
        state = self._state
        workers = [state.workers[rank] for rank in sorted(state.workers)]
        fields = {
            "elapsed_s": f"{self._clock() - self._began:.0f}",
            "iteration": str(state.workers.iteration),
            "plan": str(state.arbitrator.plan_version),
            "policy": state.policy.replace(", ", "/"),
            "global_batch": or_dash(state.workers.global_batch),
            "batch": _each(workers, lambda w: or_dash(w.batch_size)),
            f"{state.counted}_per_s": _each(workers, lambda w: figure(w.samples_per_s, ".0f")),
            "wait": _each(workers, lambda w: figure(w.shares.get("wait"), ".2f")),
            "summed_MB_per_s": _each(workers, lambda w: figure(w.summed_bytes_per_s, ".2f", 1e-6)),
            "loss": _each(workers, lambda w: figure(w.loss, ".3f")),
            "state": _each(workers, lambda w: w.phase.replace(" ", "_").replace(",", "+")),
        }
        if not state.traffic.within_one_host:
            fields |= {
                "push_MB_per_s": _each(workers, lambda w: figure(w.network.push_bytes_per_s, ".2f", 1e-6)),
                "pull_MB_per_s": _each(workers, lambda w: figure(w.network.pull_bytes_per_s, ".2f", 1e-6)),
                "retransmits_per_s": _each(workers, lambda w: figure(w.retransmits_per_s, ".2f")),
                "rtt_ms": _each(workers, lambda w: figure(w.network.rtt_s, ".3f", 1e3)),
                "network_source": _each(workers, source),
            }
        for name, value in self._newest_values().items():
            fields[f"test_{name}".replace(" ", "_")] = f"{value:.4f}" if name == ACCURACY else f"{value:.4g}"
        if (to_go_s := state.progress.time_to_go_s) is not None:
            fields["to_go_s"] = f"{to_go_s:.0f}"
        if state.arbitrator.fallbacks:
            fields["safety_net"] = str(state.arbitrator.fallbacks)
        self._print(" ".join(f"{key}={value}" for key, value in fields.items()))
        self._line_told = self._clock()
        self._plan_told = state.arbitrator.plan_version

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


def _clock_text(seconds: float) -> str:
    """`04:05`, from an hour on `1:04:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _each(workers: Sequence[WorkerState], cell: Callable[[WorkerState], str]) -> str:
    return ",".join(cell(worker) for worker in workers)


def _style(event: Line) -> str:
    return "bold red" if event["kind"] == "failed" else "yellow" if event["kind"] in NOTABLE else "dim"
