"""Results of cells as tables: nothing is lost, the bytes are stable, and damage is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.suite.results import write_result
from benchmarks.suite.tables import CELLS, CURVES, PLANS, WORKERS, export, read_tables, write_tables
from dynamix_ps.errors import UsageError
from tests.unit.benchmarks.suite.made_up_cells import made_up

FILES = (CELLS, CURVES, PLANS, WORKERS)
RESULTS = (
    made_up("pid", 30, seed=1),
    made_up("pid", 31, seed=10),
    made_up("pid", 32, seed=2),
    made_up("ppo", 20, seed=1, ended="failed"),
    dataclasses.replace(made_up("ppo", 20, scenario="spot", ended="timed out"), train_s=None),
)


def test_everything_comes_back_in_the_order_of_the_cells(tmp_path: Path) -> None:
    write_tables(tmp_path, reversed(RESULTS))
    assert [str(cell.name) for cell in read_tables(tmp_path)] == [str(name) for name in sorted(r.name for r in RESULTS)]
    for got, put in zip(read_tables(tmp_path), sorted(RESULTS, key=lambda result: result.name), strict=True):
        curve = [dataclasses.replace(point, accuracy=pytest.approx(point.accuracy, rel=1e-5)) for point in put.curve]
        curve = [dataclasses.replace(point, loss=pytest.approx(point.loss, rel=1e-5)) for point in curve]
        assert list(got.curve) == curve
        assert dataclasses.replace(got, curve=put.curve) == put


def test_an_infinite_loss_comes_back_as_unknown(tmp_path: Path) -> None:
    cell = made_up("pid", 30)
    last = dataclasses.replace(cell.curve[-1], loss=None)
    write_tables(tmp_path, [dataclasses.replace(cell, curve=(last,))])
    assert read_tables(tmp_path)[0].curve == (dataclasses.replace(last, accuracy=pytest.approx(last.accuracy)),)


def test_what_a_cell_is_judged_by_comes_back_and_is_the_accuracy_in_tables_without_it(tmp_path: Path) -> None:
    write_tables(tmp_path, [dataclasses.replace(made_up("pid", 30), metric="bpb")])
    assert read_tables(tmp_path)[0].metric == "bpb"
    lines = (tmp_path / CELLS).read_text().splitlines()
    assert lines[0].endswith(",metric") and lines[1].endswith(",bpb")
    (tmp_path / CELLS).write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    assert read_tables(tmp_path)[0].metric == "accuracy"


def test_the_bytes_depend_on_nothing_but_the_results(tmp_path: Path) -> None:
    """Neither on their order nor on whether they went through the tables before."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    write_tables(first, RESULTS)
    write_tables(second, reversed(read_tables(first)))
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert b"\r" not in (first / name).read_bytes()


def test_tables_are_made_from_the_cells_and_kept_where_there_are_none(tmp_path: Path) -> None:
    write_tables(tmp_path, RESULTS)
    export(tmp_path)
    assert len(read_tables(tmp_path)) == len(RESULTS)
    (tmp_path / "cells").mkdir()
    write_result(tmp_path / "cells", RESULTS[0])
    export(tmp_path)
    assert [cell.name for cell in read_tables(tmp_path)] == [RESULTS[0].name]
    (tmp_path / "cells" / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json: not the result"):
        export(tmp_path)


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cells\.csv: No such file.*dynamix bench run"):
        read_tables(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (CELLS, ",done,", ",gone,", r"cell h-level-4--fashion-cnn--pid--s1: ended is 'gone'"),
        (CELLS, ",50000,", ",many,", r"samples is 'many'"),
        (CURVES, "h-level-4,fashion-cnn,pid,1,", "h-level-4,fashion-cnn,pid,7,", r"curves\.csv:2: no such cell"),
        (PLANS, "64 64", "64 x", r"sizes\.0\.sizes\.1 is 'x'"),
        (WORKERS, ",0.25,", ",", r"workers\.csv:2: expected 9 fields"),
        (CELLS, "pid,10,", "pid,1,", r"cells\.csv:4: this cell has a line already"),
        (CELLS, ",machine_gflop_per_s,", ",speed,", r"cells\.csv:1: no column machine_gflop_per_s"),
        (WORKERS, "fashion-cnn,pid", 'fashion-cnn,"pid"x', r"workers\.csv: is no table"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    write_tables(tmp_path, RESULTS)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=message):
        read_tables(tmp_path)
