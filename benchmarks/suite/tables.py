"""A grid's results as CSV tables and back; the report reads nothing else. See results.py for what is in which file.

Numbers have six significant digits, lines are sorted by cell: the same results make the same bytes. Lists within a
field (thresholds, batch sizes) are separated by spaces; what is not known is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmarks.suite.results import CellName, CellResult, CurvePoint, PlanPoint, WorkerTimes, read_result
from dynamix_ps.errors import UsageError

CELLS, CURVES, PLANS, WORKERS = "cells.csv", "curves.csv", "plans.csv", "workers.csv"
PARTS = {"curve": (CURVES, CurvePoint), "sizes": (PLANS, PlanPoint), "workers": (WORKERS, WorkerTimes)}
NAME = ("scenario", "workload", "contender", "seed")  # the first columns of every table
SINGLE = tuple(field.name for field in fields(CellResult) if field.name not in ("name", *PARTS))
OPTIONAL = tuple(field.name for field in fields(CellResult) if field.default is not MISSING)  # older tables lack them
LISTS = ("thresholds", "sizes")
MAY_BE_UNKNOWN = tuple(field.name for field in fields(CellResult) if str(field.type).endswith("| None"))

Row = dict[str, Any]
_ADAPTER = TypeAdapter(CellResult)


def export(folder: Path) -> None:
    """Make the tables of a grid's folder anew from the results in its `cells/`; leave them alone if there are none.

    Raises:
        UsageError: one of them is no result, or the folder cannot be written.
    """
    try:
        results = [read_result(file) for file in (folder / "cells").glob("*.json")]
        if results:
            write_tables(folder, results)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror or error}; give a folder of a grid") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def write_tables(folder: Path, results: Iterable[CellResult]) -> None:
    """Raises OSError."""
    ordered = sorted(results, key=lambda result: result.name)
    _write(folder / CELLS, SINGLE, ((result.name, result) for result in ordered))
    for part, (file, kind) in PARTS.items():
        lines = ((result.name, point) for result in ordered for point in getattr(result, part))
        _write(folder / file, _columns(kind), lines)


def read_tables(folder: Path) -> tuple[CellResult, ...]:
    """All cells of a grid's folder, sorted by name.

    Raises:
        UsageError: the tables are not there, or a line is none of them.
    """
    cells: dict[tuple[str, ...], Row] = {}
    for where, line in _read(folder / CELLS, SINGLE):
        row: Row = {name: line[name] for name in SINGLE if name in line} | {part: [] for part in PARTS}
        row |= {"name": {name: line[name] for name in NAME}, "thresholds": _split("thresholds", line["thresholds"])}
        row |= {name: None for name in MAY_BE_UNKNOWN if line[name] == ""}
        if cells.setdefault(_key(line), row) is not row:
            raise UsageError(f"{where}: this cell has a line already; make the tables anew from the cells' results")
    for part, (file, kind) in PARTS.items():
        for where, line in _read(folder / file, _columns(kind)):
            if _key(line) not in cells:
                raise UsageError(f"{where}: no such cell in {CELLS}; make the tables anew from the cells' results")
            values = {name: _split(name, line[name]) for name in _columns(kind)}
            cells[_key(line)][part].append({name: None if value == "" else value for name, value in values.items()})
    return tuple(sorted((_checked(folder, row) for row in cells.values()), key=lambda result: result.name))


def _columns(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _write(file: Path, columns: Sequence[str], lines: Iterable[tuple[CellName, Any]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow((*NAME, *columns))
        for name, values in lines:
            writer.writerow([_text(getattr(name, key)) for key in NAME] + [_text(getattr(values, c)) for c in columns])


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _read(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Lines with where they are, which is for messages. Raises UsageError where a column is missing."""
    try:
        with file.open(newline="", encoding="utf-8") as source:
            reader = csv.DictReader(source, strict=True)
            lacking = [name for name in (*NAME, *columns) if name not in (*(reader.fieldnames or ()), *OPTIONAL)]
            if lacking:
                raise UsageError(f"{file}:1: no column {', '.join(lacking)}; make the tables anew with this version")
            for line in reader:
                where = f"{file}:{reader.line_num}"
                if None in line or None in line.values():
                    raise UsageError(f"{where}: expected {len(reader.fieldnames or ())} fields; make the tables anew")
                yield where, line
    except OSError as error:
        message = f"{file}: {error.strerror or error}; expected the tables of a grid: first `dynamix bench run`"
        raise UsageError(message) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: is no table: {error}; make the tables anew") from error


def _key(line: Row) -> tuple[str, ...]:
    return tuple(line[name] for name in NAME)


def _split(column: str, text: str) -> str | list[str]:
    return text.split() if column in LISTS else text


def _checked(folder: Path, row: Row) -> CellResult:
    try:
        return _ADAPTER.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        name = CellName(**row["name"])
        raise UsageError(
            f"{folder}: cell {name}: {place} is {first['input']!r}: {first['msg']}; make the tables anew"
        ) from error
