"""The reference of metrics, from the field tables of what workers and servers report. Pure."""

from __future__ import annotations

from dynamix_ps.report.metric_rows import MetricRow, metric_rows


def table(file: str) -> str:
    """Markdown: the columns of a CSV file of the run folder, and where else each value goes."""
    lines = ["| column | meaning | unit | range | source | scope | also in |", "| --- " * 7 + "|"]
    return "\n".join([*lines, *(_line(file, row) for row in metric_rows(file))])


def _line(file: str, row: MetricRow) -> str:
    also = ", ".join(_place(place) for place in row.exported_as if place != file)
    cells = (f"`{row.name}`", row.meaning, row.unit, row.range, row.source, row.scope, also)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _place(place: str) -> str:
    """`TensorBoard worker/loss` with the name as code."""
    system, _, name = place.partition(" ")
    return f"{system} `{name}`" if name else system
