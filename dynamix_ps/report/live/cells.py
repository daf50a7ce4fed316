"""Single cells of the live view: figures with a dash for what is unknown, bars, changes."""

from __future__ import annotations

import math

from rich.text import Text

from dynamix_ps.run_record.model import ABSENT, TIME_PARTS, WorkerState

_BAR = {"compute": "█", "push_pull": "▒", "wait": "░", "input": "·"}
_ASCII_BAR = {"compute": "#", "push_pull": "=", "wait": ".", "input": "-"}
_COLOUR = {"compute": "#56b4e9", "push_pull": "#e69f00", "wait": "#d55e00", "input": "#999999"}  # Okabe and Ito


def figure(value: float | None, spec: str, factor: float = 1.0) -> str:
    """A value times `factor`, or a dash."""
    return "-" if value is None or math.isnan(value) else format(factor * value, spec)


def percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.0f} %"


def megabytes(value: float) -> str:
    """Bytes (per second) in at most four characters up to 9999 MB."""
    return figure(value, ".1f" if not value >= 99.95e6 else ".0f", 1e-6)


def or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def source(worker: WorkerState) -> str:
    """Where its network values come from, or a dash."""
    return "-" if worker.network.network_source == "none" else worker.network.network_source


def change(worker: WorkerState, ascii_only: bool) -> Text:
    """What the last plan did to this worker's batch size."""
    if worker.batch_size is None or worker.previous_batch_size in (None, worker.batch_size):
        return Text("")
    difference = worker.batch_size - worker.previous_batch_size
    up, down = ("^", "v") if ascii_only else ("▲", "▼")
    return Text(f"{up} +{difference}" if difference > 0 else f"{down} {difference}", style="bold")


def bar(worker: WorkerState, width: int, ascii_only: bool) -> Text:
    """The parts of a window's time; widths are rounded so that the whole is `width` at most."""
    glyphs = _ASCII_BAR if ascii_only else _BAR
    drawing, drawn, upto = Text(), 0, 0.0
    for part in TIME_PARTS:
        share = worker.shares.get(part, math.nan)
        upto += 0.0 if math.isnan(share) else share
        more = min(round(upto * width), width) - drawn
        drawing.append(glyphs[part] * more, style=_COLOUR[part])
        drawn += more
    return drawing.append(" " * (width - drawn))


def bar_legend(ascii_only: bool) -> Text:
    glyphs = _ASCII_BAR if ascii_only else _BAR
    legend = Text("time: ", style="dim")
    for part in TIME_PARTS:
        legend.append(f"{glyphs[part]} {part.replace('_', '-')}  ", style=_COLOUR[part])
    return legend


def phase(worker: WorkerState) -> Text:
    """What a worker does, and whether it or its link holds the others up."""
    if worker.phase == "running" and worker.slow:
        return Text(f"slow: {worker.slow}", style="yellow")
    style = {"running": "", "finished": "green", "starting": "dim", "left": "dim", ABSENT: "dim"}.get(
        worker.phase, "bold red"
    )
    return Text(worker.phase, style=style)
