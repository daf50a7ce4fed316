"""The tables of the live view: workers; servers and scheduler; where the network values come from.

Columns are chosen by the width of the terminal: the essentials fit into 80 columns, wider ones show more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from dynamix_ps.messages import ServerView
from dynamix_ps.report.live.cells import bar, change, figure, megabytes, or_dash, percent, phase, source
from dynamix_ps.run_record.model import TIME_PARTS, WorkerState, by_worker
from dynamix_ps.run_record.run_state import RunState
from dynamix_ps.run_record.values import ratio

MEDIUM = 104  # columns from which on retransmissions, round trip and CPU are shown
WIDE = 120  # columns from which on every network value has its own column
WIDEST = 168  # from which on shares of time, memory and sources are shown as figures as well
EVER = 1 << 30


class _Column(NamedTuple):
    name: str
    cell: Callable[[WorkerState], str | Text]
    justify: JustifyMethod = "right"
    least: int = 0  # shown from this width on
    most: int = EVER  # and below this one


def workers_table(state: RunState, width: int, ascii_only: bool) -> Table:
    """One row per worker."""
    wide = width >= WIDE
    columns = (
        _Column("worker", lambda w: str(w.rank)),
        _Column("batch", lambda w: or_dash(w.batch_size)),
        _Column("change", lambda w: change(w, ascii_only), "left"),
        _Column("samples/s", lambda w: figure(w.samples_per_s, ",.0f")),
        _Column("time", lambda w: bar(w, 16 if wide else 10, ascii_only), "left"),
        _Column("compute / push-pull / wait", _split, least=WIDEST),
        _Column("push/pull", _both_rates, most=WIDE),
        _Column("push", lambda w: megabytes(w.network.push_bytes_per_s), least=WIDE),
        _Column("pull", lambda w: megabytes(w.network.pull_bytes_per_s), least=WIDE),
        _Column("retr./s", lambda w: figure(w.retransmits_per_s, ".1f"), least=MEDIUM),
        _Column("RTT ms", lambda w: figure(w.network.rtt_s, ".2f", 1e3), least=MEDIUM),
        _Column("CPU", lambda w: percent(ratio(w.system.cpu_ratio, w.system.cpu_cores)), least=MEDIUM),
        _Column("memory", lambda w: figure(w.system.memory_bytes, ",.0f", 1e-6), least=WIDEST),
        _Column("source", source, "left", least=WIDEST),
        _Column("loss", lambda w: figure(w.loss, ".3f")),
        _Column("acc.", lambda w: figure(w.accuracy, ".3f"), least=WIDE),
        _Column("state", phase, "left"),
    )
    shown = [column for column in columns if column.least <= width < column.most]
    table = _table()
    for column in shown:
        cut = "crop" if ascii_only else "ellipsis"
        table.add_column(column.name, justify=column.justify, no_wrap=True, overflow=cut)  # type: ignore[arg-type]
    for rank in sorted(state.workers):
        table.add_row(*(column.cell(state.workers[rank]) for column in shown))
    return table


def servers_table(state: RunState) -> Table:
    """One row per server and for the scheduler."""
    table = _table()
    table.add_column("server", no_wrap=True)
    for name in ("in", "out", "CPU", "memory", "unread", "unsent"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in sorted(state.servers):
        table.add_row(name, *_server_cells(state.servers[name]))
    return table


def notes(state: RunState) -> Text:
    """Units, and how the network values came about."""
    workers = state.workers.values()
    sources = by_worker({worker.rank: worker.network.network_source for worker in workers})
    ages = [age for age in (worker.network.network_age_s for worker in workers) if not math.isnan(age)]
    if sources == "none":
        return Text("network: not measured", style="dim")
    age = f", {max(ages):.1f} s old" if ages else ""
    return Text(f"network: {sources}{age}; push, pull, in, out in MB/s, memory and queues in MB", style="dim")


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _split(worker: WorkerState) -> str:
    return " / ".join(f"{percent(worker.shares.get(part)):>4}" for part in TIME_PARTS[:3])


def _both_rates(worker: WorkerState) -> str:
    return f"{megabytes(worker.network.push_bytes_per_s)}/{megabytes(worker.network.pull_bytes_per_s)}"


def _server_cells(server: ServerView) -> tuple[str, ...]:
    return (
        megabytes(server.push_bytes_per_s),
        megabytes(server.pull_bytes_per_s),
        percent(ratio(server.system.cpu_ratio, server.system.cpu_cores)),
        figure(server.system.memory_bytes, ",.0f", 1e-6),
        figure(server.unread_bytes, ".2f", 1e-6),
        figure(server.unsent_bytes, ".2f", 1e-6),
    )
