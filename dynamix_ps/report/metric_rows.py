"""The field tables as rows for people: what a metric is, and where it is exported."""

from __future__ import annotations

from typing import NamedTuple

from dynamix_ps.field_table import LARGEST_COUNT, Field, FieldTable, Quantity
from dynamix_ps.messages import LINK, SERVER, SYSTEM, WINDOW
from dynamix_ps.policy.window_arrays import OF_CLUSTER, OF_LINK, OF_RECORD
from dynamix_ps.report.exposition import PREFIX, gauge_name
from dynamix_ps.report.tensorboard import charted


class MetricRow(NamedTuple):
    """One column of a CSV file of the run folder, in words."""

    name: str
    unit: str
    range: str
    source: str
    scope: str
    exported_as: tuple[str, ...]
    meaning: str


def metric_rows(file: str) -> tuple[MetricRow, ...]:
    """The columns of windows.csv, links.csv or servers.csv, in the order of the file.

    Raises:
        KeyError: another file.
    """
    return tuple(_row(file, group, table, field) for group, table in _TABLES[file] for field in table.values())


_TABLES: dict[str, tuple[tuple[str, FieldTable], ...]] = {
    "windows.csv": (("worker", WINDOW),),
    "links.csv": (("link", LINK),),
    "servers.csv": (("server", SERVER), ("server", SYSTEM)),
}
_POLICIES = {"worker": (*OF_RECORD, *OF_CLUSTER), "link": OF_LINK, "server": ()}


def _row(file: str, group: str, table: FieldTable, field: Field) -> MetricRow:
    metric = field.metric
    of_cluster = metric.scope == "cluster"
    exported = [file]
    if field.name in charted(table):
        exported.append(f"TensorBoard {'global' if of_cluster else group}/{field.name}")
    if metric.gauge:
        exported.append(f"Prometheus {gauge_name('' if of_cluster else group, metric)}")
    if metric.total:
        exported.append(f"Prometheus {PREFIX}{metric.total}_total")
    if field.name in _POLICIES[group]:
        exported.append("policies")
    allowed = _range(metric.quantity) + (" or unknown" if field.may_be_unknown else "") if field.is_number else ""
    return MetricRow(
        field.name, metric.quantity.unit, allowed, metric.source, metric.scope, tuple(exported), metric.meaning
    )


def _range(quantity: Quantity) -> str:
    high = "2^53" if quantity.high == LARGEST_COUNT else f"{quantity.high:g}"
    return f"{quantity.low:g} to {high}"
