"""The run as it goes: a table that renews itself on a terminal, plain `key=value` lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.text import Text

from dynamix_ps.report.live.cells import bar_legend, figure, or_dash, source
from dynamix_ps.report.live.tables import notes, servers_table, workers_table
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import WorkerState
from dynamix_ps.run_record.run_state import RunState

PLAIN_EVERY_S = 10.0
EVENTS_SHOWN = 4
_NOTABLE = frozenset(
    {
        "degraded",
        "recovered",
        "fallback",
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
    | {"registered", "started", "left", "stopped", "prometheus"}
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
        """Header, one row per worker and server, where the values come from, the last things worth telling."""
        state = self._state
        ascii_only = self._console.options.ascii_only
        cut: OverflowMethod = "crop" if ascii_only else "ellipsis"
        parts: list[RenderableType] = [self._header(), Text(), workers_table(state, self._console.width, ascii_only)]
        if state.servers:
            parts += [Text(), servers_table(state)]
        parts += [Text(), bar_legend(ascii_only), notes(state)]
        notable = [event for event in state.events if event["kind"] not in _ROUTINE][-EVENTS_SHOWN:]
        told = [Text(describe(event), overflow=cut, no_wrap=True, style=_style(event)) for event in notable]
        return Group(*parts, *told)

    def _header(self) -> Text:
        state = self._state
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        parts = [f"iteration {state.iteration:,}", f"plan {state.plan_version}"]
        parts.append(f"global batch {or_dash(state.global_batch)}")
        if state.evaluations:
            parts.append(f"test accuracy {state.evaluations[-1].accuracy:.4f}")
        if state.safety_net:
            parts.append(f"safety net: {state.safety_net}")
        parts.append(f"{minutes:02d}:{seconds:02d}")
        text = Text(f"{state.run} ({state.policy})", style="bold")
        text.append("  " + "  ".join(parts), style="not bold")
        return text.append(f"\nprometheus: {state.prometheus}", style="dim not bold") if state.prometheus else text

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
            "global_batch": or_dash(state.global_batch),
            "batch": _each(workers, lambda w: or_dash(w.batch_size)),
            "samples_per_s": _each(workers, lambda w: figure(w.samples_per_s, ".0f")),
            "wait": _each(workers, lambda w: figure(w.shares.get("wait"), ".2f")),
            "push_MB_per_s": _each(workers, lambda w: figure(w.network.push_bytes_per_s, ".2f", 1e-6)),
            "pull_MB_per_s": _each(workers, lambda w: figure(w.network.pull_bytes_per_s, ".2f", 1e-6)),
            "retransmits_per_s": _each(workers, lambda w: figure(w.retransmits_per_s, ".2f")),
            "rtt_ms": _each(workers, lambda w: figure(w.network.rtt_s, ".3f", 1e3)),
            "network_source": _each(workers, source),
            "loss": _each(workers, lambda w: figure(w.loss, ".3f")),
            "state": _each(workers, lambda w: w.phase.replace(" ", "_").replace(",", "+")),
        }
        if state.evaluations:
            fields["test_accuracy"] = f"{state.evaluations[-1].accuracy:.4f}"
        if state.fallbacks:
            fields["safety_net"] = str(state.fallbacks)
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


def _each(workers: Sequence[WorkerState], cell: Callable[[WorkerState], str]) -> str:
    return ",".join(cell(worker) for worker in workers)


def _style(event: Line) -> str:
    return "bold red" if event["kind"] == "failed" else "yellow" if event["kind"] in _NOTABLE else "dim"
