"""The rows of the documentation name the metrics that are exported."""

import pytest

from dynamix_ps.report.exposition import COUNTERS, GAUGES
from dynamix_ps.report.metric_rows import MetricRow, metric_rows
from dynamix_ps.run_record.tables import LINK_COLUMNS, SERVER_COLUMNS, WINDOW_COLUMNS

FILES = {"windows.csv": WINDOW_COLUMNS, "links.csv": LINK_COLUMNS, "servers.csv": SERVER_COLUMNS}


@pytest.mark.parametrize("file", FILES)
def test_every_column_has_a_row(file: str) -> None:
    """Except when the row was written, and which window it belongs to."""
    named = {"time_s"} if file == "windows.csv" else {"time_s", "window"}
    assert {row.name for row in metric_rows(file)} == set(FILES[file]) - named
    assert all(row.meaning for row in metric_rows(file))


def test_exported_names_are_those_of_the_exporter() -> None:
    totals = {f"{name}_total" for name in COUNTERS}
    named = {
        name.removeprefix("Prometheus ")
        for file in FILES
        for row in metric_rows(file)
        for name in row.exported_as
        if name.startswith("Prometheus ")
    }
    assert named <= {*GAUGES, *totals}
    assert {"dynamix_worker_loss", "dynamix_loss", "dynamix_link_age_seconds", "dynamix_server_memory_bytes"} <= named


def test_rows_in_full() -> None:
    rows = {row.name: row for row in metric_rows("windows.csv")}
    assert rows["global_loss"] == MetricRow(
        "global_loss",
        "",
        "-1e+30 to 1e+30 or unknown",
        "hook",
        "cluster",
        ("windows.csv", "TensorBoard global/global_loss", "Prometheus dynamix_loss", "policies"),
        "Mean loss over all samples",
    )
    assert rows["iterations"].exported_as == ("windows.csv", "policies")
    assert (rows["iterations"].unit, rows["iterations"].range) == ("iterations", "1 to 2^53")
    assert (rows["cpu_cores"].source, rows["rtt_s"].source) == ("machine", "kernel")
    assert rows["samples"].exported_as == (
        "windows.csv",
        "TensorBoard worker/samples",
        "Prometheus dynamix_samples_total",
        "policies",
    )
