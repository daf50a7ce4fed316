"""The page of the data plane: one table per part, missed bars in bold, files of one folder together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.data_plane import figures, picture, read
from dynamix_ps.errors import UsageError


def row(ratio: float, **more: Any) -> dict[str, Any]:
    """The measurements of one size, at most half of gloo's time allowed."""
    return {
        "size_bytes": 1 << 20,
        "ours_ms": 10 * ratio,
        "gloo_ms": 10.0,
        "ratio_to_gloo": ratio,
        "spread_to_gloo": [ratio - 0.1, ratio + 0.1],
        "cpu_s": {"ours": 0.001, "gloo": 0.002},
        "bars": {"ratio_to_gloo": {"figure": ratio, "at_most": 0.5, "met": ratio <= 0.5}},
        **more,
    }


def measured(folder: Path) -> dict[str, list[Any]]:
    floor = {"ratio_to_floor": {"figure": 1.5, "at_most": 3.0, "met": True}}
    near = [row(0.25, workers=workers, floor_ms=1.0) for workers in (2, 4)]
    for one in near:
        one["bars"] |= floor
    far = [row(0.75, case="200x3+3", limit_ms=3.0, gloo_limit_ms=4.0)]
    for name, content in (("near", {"one_host": near}), ("far", {"hosts": far})):
        (folder / f"{name}.json").write_text(json.dumps({**content, "machine": "two cores"}))
    return read(folder)


def test_tables(tmp_path: Path) -> None:
    page = figures(measured(tmp_path), "kept")
    assert "two cores. 4 of 4 bars met." in page and "two cores. 0 of 1 bars met." in page
    assert "| 4 | 1 MiB | 2.5 | 10 | 0.25 [0.15, 0.35] | 0.50 | 1 | 1.50 | 1 and 2 |" in page
    assert "| 200x3+3 | 1 MiB | 7.5 | 10 | **0.75** [0.65, 0.85] | 0.50 | 3 and 4 | 0.75 | 1 and 2 |" in page


def test_a_panel_for_each_number_of_workers_and_one_for_hosts(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    picture(figure, measured(tmp_path))
    assert [axes.get_title() for axes in figure.axes] == ["one host, 2 workers", "one host, 4 workers", "between hosts"]


@pytest.mark.parametrize("content", [None, "{", '{"hosts": []}'])
def test_a_folder_without_measurements_is_refused(content: str | None, tmp_path: Path) -> None:
    if content:
        (tmp_path / "some.json").write_text(content)
    with pytest.raises(UsageError, match="comm_curve"):
        read(tmp_path)
