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
    of_network: bool = False  # shown only where there is a network between roles


def workers_table(state: RunState, width: int, ascii_only: bool, rows: int = EVER) -> Table:
    """One row per worker; where they are on several hosts, those of one host stand together.

    Args:
        rows: so many workers are shown.
    """
    wide, network = width >= WIDE, not state.traffic.within_one_host
    several_hosts = len({worker.host for worker in state.workers.values()}) > 1
    columns = (
        _Column("host", lambda w: w.host, "left", least=MEDIUM if several_hosts else EVER),
        _Column("worker", lambda w: str(w.rank)),
        _Column("batch", lambda w: or_dash(w.batch_size)),
        _Column("change", lambda w: change(w, ascii_only), "left"),
        _Column(f"{state.counted}/s", lambda w: figure(w.samples_per_s, ",.0f")),
        _Column("time", lambda w: bar(w, 16 if wide else 10, ascii_only), "left"),
        _Column("compute / push-pull / wait", _split, least=WIDEST),
        _Column("sums", lambda w: megabytes(w.summed_bytes_per_s), least=WIDE if network else 0),
        _Column("push/pull", _both_rates, most=WIDE, of_network=True),
        _Column("push", lambda w: megabytes(w.network.push_bytes_per_s), least=WIDE, of_network=True),
        _Column("pull", lambda w: megabytes(w.network.pull_bytes_per_s), least=WIDE, of_network=True),
        _Column("retr./s", lambda w: figure(w.retransmits_per_s, ".1f"), least=MEDIUM, of_network=True),
        _Column("RTT ms", lambda w: figure(w.network.rtt_s, ".2f", 1e3), least=MEDIUM, of_network=True),
        _Column("CPU", lambda w: percent(ratio(w.system.cpu_ratio, w.system.cpu_cores)), least=MEDIUM),
        _Column("memory", lambda w: figure(w.system.memory_bytes, ",.0f", 1e-6), least=WIDEST),
        _Column("source", source, "left", least=WIDEST, of_network=True),
        _Column("loss", lambda w: figure(w.loss, ".3f")),
        _Column("acc.", lambda w: figure(w.accuracy, ".3f"), least=WIDE),
        _Column("state", phase, "left"),
    )
    shown = [one for one in columns if one.least <= width < one.most and (network or not one.of_network)]
    table = _table()
    for column in shown:
        cut = "crop" if ascii_only else "ellipsis"
        table.add_column(column.name, justify=column.justify, no_wrap=True, overflow=cut)  # type: ignore[arg-type]
    for worker in state.workers.by_host[:rows]:
        table.add_row(*(column.cell(worker) for column in shown))
    return table


def servers_table(state: RunState) -> Table:
    """One row per server that is not lost, and for the scheduler."""
    columns = ("CPU", "memory") if state.traffic.within_one_host else ("in", "out", "CPU", "memory", "unread", "unsent")
    table = _table()
    table.add_column("server", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for server in state.serving:
        cells = _server_cells(server)
        table.add_row(server.name, *(cells[column] for column in columns))
    return table


def notes(state: RunState) -> Text:
    """Units, and how the network values came about."""
    if state.traffic.within_one_host:
        return Text("all roles on one host; sums in MB/s, memory in MB", style="dim")
    workers = state.workers.values()
    sources = by_worker({worker.rank: worker.network.network_source for worker in workers})
    ages = [age for age in (worker.network.network_age_s for worker in workers) if not math.isnan(age)]
    if sources == "none":
        return Text("network: not measured; sums in MB/s", style="dim")
    age = f", {max(ages):.1f} s old" if ages else ""
    return Text(f"network: {sources}{age}; sums, push, pull, in, out: MB/s; memory, queues: MB", style="dim")


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _split(worker: WorkerState) -> str:
    return " / ".join(f"{percent(worker.shares.get(part)):>4}" for part in TIME_PARTS[:3])


def _both_rates(worker: WorkerState) -> str:
    return f"{megabytes(worker.network.push_bytes_per_s)}/{megabytes(worker.network.pull_bytes_per_s)}"


def _server_cells(server: ServerView) -> dict[str, str]:
    return {
        "in": megabytes(server.push_bytes_per_s),
        "out": megabytes(server.pull_bytes_per_s),
        "CPU": percent(ratio(server.system.cpu_ratio, server.system.cpu_cores)),
        "memory": figure(server.system.memory_bytes, ",.0f", 1e-6),
        "unread": figure(server.unread_bytes, ".2f", 1e-6),
        "unsent": figure(server.unsent_bytes, ".2f", 1e-6),
    }
