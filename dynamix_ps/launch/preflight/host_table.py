"""The answers of the hosts, and the links between them, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamix_ps.launch.host.code_files import digest_of_all
from dynamix_ps.launch.preflight.host_checks import megabytes
from dynamix_ps.launch.preflight.inspection import HostAnswer, HostReport, Way

_HEAD = ("host", "address", "python", "torch", "BytePS", "code", "clock", "free memory", "GPUs")
_WIDEST_MATRIX = 8  # hosts
_SLOWEST = 8


def host_lines(report: HostReport) -> Iterator[str]:
    """A line per host."""
    rows: list[Sequence[str]] = [_HEAD]
    rows += [(host, *_cells(answer)) for host, answer in report.answers.items()]
    rows += [(host, "not known", *("-" for _ in _HEAD[2:])) for host in report.silent]
    return _aligned(rows)


def way_lines(report: HostReport) -> Iterator[str]:
    """Rate and round trip of every link; of the slowest links where a table of all would be too long."""
    best = {(way.source, way.target): way for way in report.ways if not way.port_key}
    hosts = list(report.answers)
    if len(hosts) <= _WIDEST_MATRIX:
        rows: list[Sequence[str]] = [("from \\ to", *hosts)]
        rows += [(source, *(_way_cell(best.get((source, target))) for target in hosts)) for source in hosts]
        return _aligned(rows)
    slowest = sorted(best.values(), key=lambda way: way.bytes_per_s)[:_SLOWEST]
    rows = [("slowest from", "to", "rate and round trip")]
    return _aligned([*rows, *((way.source, way.target, _way_cell(way)) for way in slowest)])


def _cells(answer: HostAnswer) -> tuple[str, ...]:
    facts = answer.facts
    gpus = [f"{facts.gpus.count(model)} x {model}" for model in dict.fromkeys(facts.gpus)]
    return (
        facts.address or "none",
        facts.versions.get("python") or "-",
        facts.versions.get("torch") or "-",
        facts.versions.get("byteps") or "-",
        f"{digest_of_all(facts.code)[:8]} ({_files(len(facts.code))})" if facts.code else "none",
        f"{round(answer.clock_ahead_s, 2) + 0.0:+.2f} s",  # not -0.00
        f"{facts.memory_bytes / 1e9:.1f} GB",
        ", ".join(gpus) or "none",
    )


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _way_cell(way: Way | None) -> str:
    if way is None:
        return "-"
    return way.problem or f"{megabytes(way.bytes_per_s)}, {way.round_trip_s * 1e3:.2f} ms"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
